#include "fabric.h"

#include <cstdlib>

namespace harness {

const char* const CounterNames[CounterCount] = {
    "sent", "delivered", "dropped", "directed_drop", "blackhole", "down", "corrupted", "duplicated", "reordered", "marked", "trimmed",
    "delayed", "injected", "bad"};

namespace {
constexpr size_t MaxFrame = 16384;
constexpr int EthernetBytes = 14, BthBytes = 12;
constexpr int Ce = 3;

int be16(const std::vector<uint8_t>& b, size_t at) { return b[at] << 8 | b[at + 1]; }
int be24(const std::vector<uint8_t>& b, size_t at) { return b[at] << 16 | b[at + 1] << 8 | b[at + 2]; }
void put16(std::vector<uint8_t>& b, size_t at, int value) {
    b[at] = static_cast<uint8_t>(value >> 8);
    b[at + 1] = static_cast<uint8_t>(value);
}
int traffic_class(const std::vector<uint8_t>& b, const FrameInfo& info) { return info.ipv4 ? b[15] : (b[14] & 15) << 4 | b[15] >> 4; }
void set_traffic_class(std::vector<uint8_t>& b, const FrameInfo& info, int value) {
    if (info.ipv4) {
        b[15] = static_cast<uint8_t>(value);
    } else {
        b[14] = static_cast<uint8_t>((b[14] & 0xF0) | value >> 4);
        b[15] = static_cast<uint8_t>((value & 15) << 4 | (b[15] & 15));
    }
}
void fix_checksum(std::vector<uint8_t>& b, const FrameInfo& info) {
    if (!info.ipv4) return;
    uint32_t sum = 0;
    put16(b, 24, 0);
    for (int i = 14; i < 34; i += 2) sum += be16(b, i);
    while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
    put16(b, 24, ~sum & 0xFFFF);
}
// Bytes of extension headers of a data packet: METH, TSETH, RETH, ImmDt.
int extension_bytes(const FrameInfo& info) { return 4 + 4 * info.ts + 16 + (info.opcode == 0xC9 || info.opcode == 0xCB ? 4 : 0); }
bool is_data(const FrameInfo& info) { return info.valid && info.opcode >= 0xC6 && info.opcode <= 0xCB; }
}  // namespace

FrameInfo::FrameInfo(const std::vector<uint8_t>& b) {
    if (b.size() < 38) return;
    const int type = be16(b, 12);
    ipv4 = type == 0x0800;
    if (!ipv4 && type != 0x86DD) return;
    udp_at = EthernetBytes + (ipv4 ? 20 : 40);
    bth_at = udp_at + 8;
    if (b.size() < static_cast<size_t>(bth_at + BthBytes)) return;
    const int label = ipv4 ? 0 : be16(b, 16);
    const int port = be16(b, udp_at);
    ev = ipv4 ? port : static_cast<int64_t>(port) << 16 | label;
    opcode = b[bth_at];
    qp = be24(b, bth_at + 5);
    rtx = b[bth_at + 8] >> 5 & 1;
    ts = b[bth_at + 8] >> 4 & 1;
    psn = be24(b, bth_at + 9);
    end = ipv4 ? EthernetBytes + be16(b, 16) : udp_at + be16(b, 18);
    if (end > static_cast<int>(b.size()) || end < bth_at + BthBytes) end = static_cast<int>(b.size());
    valid = true;
}

Pcap::Pcap(const std::string& path) : file_(fopen(path.c_str(), "wb")) {
    if (!file_) return;
    const uint32_t head[6] = {0xA1B23C4D, 2 | 4 << 16, 0, 0, 65535, 1};
    fwrite(head, sizeof head, 1, file_);
}

void Pcap::write(uint64_t ns, const std::vector<uint8_t>& bytes) {
    if (!file_) return;
    const uint32_t size = static_cast<uint32_t>(bytes.size());
    const uint32_t head[4] = {static_cast<uint32_t>(ns / 1000000000), static_cast<uint32_t>(ns % 1000000000), size, size};
    fwrite(head, sizeof head, 1, file_);
    fwrite(bytes.data(), 1, bytes.size(), file_);
}

Link::Link(Shared& shared, int nic, int plane, int port_width, uint64_t seed)
    : shared_(shared), nic_(nic), plane_(plane), beat_bytes_(port_width / 8), random_(seed) {}

// --- Faults -----------------------------------------------------------------------------------------------------------------------
void Link::lose(uint64_t id, Counter cause) {
    counters[cause]++;
    shared_.events.put(EventType::Lost, nic_, plane_, 0, id, cause, nullptr, 0);
}

// Flips one bit. A random one (bit < 0) lies where the ICRC, or the IPv4 checksum, must notice it: so each one is a frame lost.
void Link::corrupt(std::vector<uint8_t>& bytes, const FrameInfo& info, int64_t bit) {
    if (bit >= 0) {
        bytes[bit / 8 % bytes.size()] ^= static_cast<uint8_t>(1 << bit % 8);
        return;
    }
    const int udp = info.udp_at;
    int at = 0;
    bool masked = true;
    while (masked) {
        at = static_cast<int>(random_.between(EthernetBytes, info.end - 1));
        masked = at == udp + 6 || at == udp + 7 || at == info.bth_at + 4 ||
                 (info.ipv4 ? at == 15 || at == 22 : at == 14 || at == 15 || at == 16 || at == 17 || at == 21);
    }
    bytes[at] ^= static_cast<uint8_t>(1 << random_.below(8));
}

bool Link::mark(std::vector<uint8_t>& bytes, const FrameInfo& info) {
    const int traffic = traffic_class(bytes, info);
    if (!(traffic & 3) || (traffic & 3) == Ce) return false;
    set_traffic_class(bytes, info, traffic | Ce);
    fix_checksum(bytes, info);
    return true;
}

bool Link::trim(std::vector<uint8_t>& bytes, const FrameInfo& info, bool last_hop) {
    if (!is_data(info)) return false;
    const size_t keep = info.bth_at + BthBytes + extension_bytes(info);
    if (bytes.size() <= keep) return false;
    bytes.resize(keep);
    if (settings.trim_cut_lengths) {
        const int udp = static_cast<int>(keep) - info.udp_at;
        put16(bytes, info.udp_at + 4, udp);
        if (info.ipv4) put16(bytes, 16, udp + 20);
        else put16(bytes, 18, udp);
    }
    const int dscp = last_hop ? shared_.dscp_trimmed_lasthop : shared_.dscp_trimmed;
    set_traffic_class(bytes, info, dscp << 2 | (traffic_class(bytes, info) & 3));
    fix_checksum(bytes, info);
    return true;
}

void Link::push(uint64_t id, std::vector<uint8_t> bytes, bool same, bool bad, uint64_t due) {
    queue_.push(Frame{due, order_++, id, std::move(bytes), same, bad});
}

void Link::inject(const uint8_t* data, size_t length, int64_t delay, bool bad) {
    counters[Injected]++;
    push(shared_.next_frame++, std::vector<uint8_t>(data, data + length), false, bad, shared_.events.clock + delay);
}

// A whole frame has left the NIC: decide its fate.
void Link::enter(std::vector<uint8_t> bytes, bool bad) {
    EventStream& events = shared_.events;
    const uint64_t id = shared_.next_frame++;
    counters[Sent]++;
    events.put(EventType::Sent, nic_, plane_, bad ? Flag::Bad : 0, id, 0, bytes.data(), bytes.size());
    if (bad) return lose(id, Bad);  // cut short by a port that went down: a MAC would not send it as a frame
    if (!shared_.sent_pcap.empty()) shared_.sent_pcap[plane_]->write(static_cast<uint64_t>(events.clock * shared_.clock_ns), bytes);
    if (!shared_.link_up[nic_][plane_] || !shared_.link_up[1 - nic_][plane_]) return lose(id, Down);

    const FrameInfo info(bytes);
    bool directed_corrupt = false, directed_duplicate = false, directed_mark = false, directed_trim = false, last_hop = false;
    int64_t extra = 0, bit = -1, duplicate_delay = 0;
    for (Rule& rule : shared_.rules) {
        if (!rule.active || (rule.nic >= 0 && rule.nic != nic_) || (rule.plane >= 0 && rule.plane != plane_)) continue;
        if (!info.valid || info.opcode < rule.opcode_low || info.opcode > rule.opcode_high) continue;
        if ((rule.rtx >= 0 && rule.rtx != info.rtx) || (rule.qp >= 0 && rule.qp != info.qp)) continue;
        if ((rule.psn >= 0 && rule.psn != info.psn) || (rule.ev >= 0 && rule.ev != info.ev)) continue;
        if (rule.seen++ < rule.skip || (rule.count >= 0 && rule.hits >= rule.count)) continue;
        rule.hits++;
        switch (rule.action) {
            case Action::Drop: return lose(id, DirectedDrop);
            case Action::Blackhole: return lose(id, Blackhole);
            case Action::Delay: extra += rule.argument; break;
            case Action::Corrupt: directed_corrupt = true; bit = rule.argument; break;
            case Action::Duplicate: directed_duplicate = true; duplicate_delay = rule.argument; break;
            case Action::Mark: directed_mark = true; break;
            case Action::TrimLastHop: last_hop = true; [[fallthrough]];
            case Action::Trim: directed_trim = true; break;
        }
    }
    const LinkSettings& s = settings;
    if (random_.chance(s.drop)) return lose(id, Dropped);
    bool same = true;
    // The ECN mark comes before a trim: a queue marks what it then cuts.
    if (info.valid && (directed_mark || random_.chance(s.mark)) && mark(bytes, info)) {
        counters[Marked]++;
        same = false;
    }
    bool trimmed = false;
    if (!directed_trim && random_.chance(s.trim)) directed_trim = true;
    if (!directed_trim && random_.chance(s.trim_lasthop)) directed_trim = last_hop = true;
    if (directed_trim && trim(bytes, info, last_hop)) {
        counters[Trimmed]++;
        trimmed = true;
        same = false;
    }
    if (directed_duplicate || random_.chance(s.duplicate)) {
        counters[Duplicated]++;
        push(id, bytes, same, false, events.clock + s.delay + random_.between(0, s.jitter) + duplicate_delay + 1);
    }
    if (info.valid && !trimmed && (directed_corrupt || random_.chance(s.corrupt))) {
        corrupt(bytes, info, bit);
        counters[Corrupted]++;
        same = false;
    }
    uint64_t due = events.clock + s.delay + random_.between(0, s.jitter);
    if (extra) {
        counters[Delayed]++;
        due += extra;
    } else if (random_.chance(s.reorder)) {
        counters[Reordered]++;
        due += random_.between(1, s.reorder_clocks);
    } else {
        if (due < last_due_) due = last_due_;  // jitter alone does not reorder
        last_due_ = due;
    }
    push(id, std::move(bytes), same, false, due);
}

// --- Streams ----------------------------------------------------------------------------------------------------------------------
void Link::clock_tx(const Beat& in) {
    moved = false;
    const uint64_t full = beat_bytes_ == 64 ? ~0ull : (1ull << beat_bytes_) - 1;
    EventStream& events = shared_.events;
    const std::string name = "m_axis_tx" + std::to_string(plane_) + ": ";
    if (stalled_ &&
        !(in.valid && in.last == before_.last && in.keep == before_.keep && in.user == before_.user && !memcmp(in.data, before_.data, beat_bytes_)))
        events.error(nic_, name + "tvalid or its payload changed before tready");
    if (in.valid && tx_ready) {
        moved = true;
        const int count = in.keep == full ? beat_bytes_ : __builtin_popcountll(in.keep);
        if (in.keep & (in.keep + 1) || !in.keep) events.error(nic_, name + "tkeep is empty or has holes");
        if (!in.last && in.keep != full) events.error(nic_, name + "tkeep is not full before the last beat");
        incoming_.insert(incoming_.end(), in.data, in.data + count);
        if (incoming_.size() > MaxFrame) {
            events.error(nic_, name + "a frame does not end");
            incoming_.clear();
        }
        if (in.last) {
            enter(std::move(incoming_), in.user);
            incoming_ = {};
        }
    }
    const bool accepted = in.valid && tx_ready;
    stalled_ = in.valid && !tx_ready;
    tx_ready = !random_.chance(settings.tx_stall);
    if (settings.tx_lazy && (!in.valid || accepted)) tx_ready = false;  // a sink that waits for valid
    if (settings.tx_period > 1 && ++tx_clock_ % settings.tx_period) tx_ready = false;
    before_ = in;
}

void Link::next_beat() {
    const size_t left = current_.bytes.size() - offset_;
    const size_t count = left < static_cast<size_t>(beat_bytes_) ? left : beat_bytes_;
    rx.valid = true;
    rx.last = count == left;
    rx.user = rx.last && current_.bad;
    rx.keep = count == 64 ? ~0ull : (1ull << count) - 1;
    memset(rx.data, 0, sizeof rx.data);
    memcpy(rx.data, &current_.bytes[offset_], count);
    offset_ += count;
}

void Link::clock_rx(bool ready) {
    EventStream& events = shared_.events;
    if (rx.valid && ready) {
        moved = true;
        rx.valid = false;
        if (rx.last) {
            sending_ = false;
            counters[Delivered]++;
            const uint8_t flags = (current_.same ? Flag::Same : 0) | (current_.bad ? Flag::Bad : 0);
            events.put(EventType::Delivered, 1 - nic_, plane_, flags, current_.id, 0, current_.bytes.data(), current_.same ? 0 : current_.bytes.size());
            if (!shared_.delivered_pcap.empty()) shared_.delivered_pcap[plane_]->write(static_cast<uint64_t>(events.clock * shared_.clock_ns), current_.bytes);
        }
    }
    if (rx.valid) return;
    while (!sending_ && !queue_.empty() && queue_.top().due <= events.clock) {
        current_ = queue_.top();
        queue_.pop();
        if (!shared_.link_up[nic_][plane_] || !shared_.link_up[1 - nic_][plane_]) {
            lose(current_.id, Down);
            continue;
        }
        sending_ = true;
        offset_ = 0;
    }
    if (sending_ && !random_.chance(settings.rx_gap)) next_beat();
}

}  // namespace harness
