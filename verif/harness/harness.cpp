// Two NICs, their hosts and the fabric between them. Verilog calls mrc_clock once per clock; Python calls h_* through ctypes.
#include <cstdlib>
#include <memory>

#include "axi_memory.h"
#include "fabric.h"
#include "host.h"

using namespace harness;

namespace {

constexpr int Nics = 2;

// Positions of 32-bit words in the vectors between Verilog and here, for one NIC. harness.sv has the same layout.
struct Words {
    int data, port;  // words of the AXI data and of a plane's data
    int planes;
    int in_wdata() const { return 12; }
    int in_plane(int p) const { return 12 + data + p * (2 + port); }
    int in_size() const { return in_plane(planes); }
    int out_rdata() const { return 5; }
    int out_plane(int p) const { return 5 + data + p * (2 + port); }
    int out_size() const { return out_plane(planes); }
};

uint64_t wide(const uint32_t* w) { return w[0] | static_cast<uint64_t>(w[1]) << 32; }

struct Nic {
    std::unique_ptr<AxiMemory> memory;
    std::unique_ptr<Host> host;
    std::vector<std::unique_ptr<Link>> links;  // what it sends
    uint32_t tick = 0;
};

struct Stop {  // when to wake Python
    uint64_t clock = 0, event_bytes = 1 << 20, completions = ~0ull, answers = ~0ull, quiet = ~0ull;
};

struct Harness {
    EventStream events;
    Shared shared{events, {}, 0, 8, 12, 16, {}, {}, {}};
    Words words{};
    Nic nics[Nics];
    Stop stop;
    uint64_t last_activity = 0;
    bool armed = false, ready = false, awake = false;
    int record_words[2] = {};
    int64_t records = 0;
};

Harness* h = nullptr;

void read_nic(const uint32_t* w, LiteIn& lite, AxiIn& axi, Beat* tx, uint32_t& rx_ready, uint32_t& tick) {
    const uint32_t f = w[0];
    lite = {bool(f & 1), bool(f >> 1 & 1), bool(f >> 2 & 1), bool(f >> 5 & 1), bool(f >> 6 & 1), bool(f >> 15 & 1), f >> 3 & 3, f >> 7 & 3, w[1]};
    axi.aw = {bool(f >> 9 & 1), wide(w + 3), w[2]};
    axi.w.valid = f >> 10 & 1;
    axi.w.last = f >> 11 & 1;
    axi.w.strobe = wide(w + 8);
    memcpy(axi.w.data, w + h->words.in_wdata(), 4 * h->words.data);
    axi.bready = f >> 12 & 1;
    axi.ar = {bool(f >> 13 & 1), wide(w + 6), w[5]};
    axi.rready = f >> 14 & 1;
    rx_ready = f >> 24;
    tick = w[11];
    for (int p = 0; p < h->words.planes; p++) {
        const uint32_t* plane = w + h->words.in_plane(p);
        tx[p].valid = f >> (16 + p) & 1;
        tx[p].last = w[10] >> p & 1;
        tx[p].user = w[10] >> (8 + p) & 1;
        tx[p].keep = wide(plane);
        memcpy(tx[p].data, plane + 2, 4 * h->words.port);
    }
}

void write_nic(uint32_t* w, int nic) {
    const LiteOut& lite = h->nics[nic].host->out;
    const AxiOut& axi = h->nics[nic].memory->out;
    uint32_t f = lite.awvalid | lite.wvalid << 1 | lite.bready << 2 | lite.arvalid << 3 | lite.rready << 4 | axi.awready << 5 |
                 axi.wready << 6 | axi.bvalid << 7 | axi.bresp << 8 | axi.arready << 10 | axi.rvalid << 11 | axi.rresp << 12 | axi.rlast << 14;
    uint32_t stream = 0;
    for (int p = 0; p < h->words.planes; p++) {
        const Beat& rx = h->nics[1 - nic].links[p]->rx;
        uint32_t* plane = w + h->words.out_plane(p);
        f |= static_cast<uint32_t>(h->shared.link_up[nic][p]) << (16 + p) | static_cast<uint32_t>(h->nics[nic].links[p]->tx_ready) << (24 + p);
        stream |= rx.valid << p | rx.last << (8 + p) | rx.user << (16 + p);
        plane[0] = static_cast<uint32_t>(rx.keep);
        plane[1] = static_cast<uint32_t>(rx.keep >> 32);
        memcpy(plane + 2, rx.data, 4 * h->words.port);
    }
    w[0] = f;
    w[1] = (lite.awaddr & 0xFFFF) | lite.araddr << 16;
    w[2] = lite.wdata;
    w[3] = lite.wstrb | axi.bid << 8 | axi.rid << 16;
    w[4] = stream;
    memcpy(w + h->words.out_rdata(), axi.rdata, 4 * h->words.data);
}

bool time_to_wake() {
    EventStream& e = h->events;
    const Stop& s = h->stop;
    return e.failed || e.clock >= s.clock || e.bytes().size() >= s.event_bytes || e.completions >= s.completions || e.answers >= s.answers ||
           (s.quiet != ~0ull && e.clock >= h->last_activity + s.quiet);
}

}  // namespace

extern "C" {

// --- Verilog --------------------------------------------------------------------------------------------------------------------
// One clock of everything outside the NICs. `wake_up` is 1 in the clock in which Python is to wake.
void mrc_clock(const uint32_t* in, uint32_t* out, int* wake_up) {
    *wake_up = 0;
    if (!h || !h->ready) {
        return;  // `out` stays as it is: all zeros at the start
    }
    LiteIn lite[Nics];
    static AxiIn axi[Nics];
    static Beat tx[Nics][8];
    uint32_t rx_ready[Nics];
    bool moved = false;
    for (int n = 0; n < Nics; n++) read_nic(in + n * h->words.in_size(), lite[n], axi[n], tx[n], rx_ready[n], h->nics[n].tick);
    for (int n = 0; n < Nics; n++) {
        Nic& nic = h->nics[n];
        nic.memory->clock(axi[n]);
        nic.host->clock(lite[n], nic.memory->unanswered_writes());
        moved |= nic.memory->moved | nic.host->moved;
        for (int p = 0; p < h->words.planes; p++) {
            Link& link = *nic.links[p];
            link.clock_tx(tx[n][p]);
            link.clock_rx(rx_ready[1 - n] >> p & 1);
            moved |= link.moved | !link.idle();
        }
    }
    for (int n = 0; n < Nics; n++) write_nic(out + n * h->words.out_size(), n);
    if (moved) h->last_activity = h->events.clock;
    // The wire must fall before it rises again, or nobody sees an edge.
    const bool wake = h->armed && !h->awake && time_to_wake();
    h->awake = wake;
    if (wake) h->armed = false;
    h->events.clock++;
    *wake_up = wake;
}

// A commit record. `clock` is that of the mrc_clock call that follows.
void mrc_record(int nic, int owner, const uint32_t* data) {
    if (!h || !h->ready) return;
    h->records++;
    h->last_activity = h->events.clock;
    h->events.put(EventType::Record, nic, owner, 0, h->records - 1, 0, data, 4 * static_cast<size_t>(h->record_words[owner]));
}

// --- Python -----------------------------------------------------------------------------------------------------------------------
void h_create(int planes, int data_width, int port_width, uint64_t memory_bytes, uint64_t seed, int req_words, int rsp_words, double clock_ns) {
    delete h;
    h = new Harness;
    h->words = {data_width / 32, port_width / 32, planes};
    h->shared.clock_ns = clock_ns;
    h->record_words[0] = req_words;
    h->record_words[1] = rsp_words;
    for (int n = 0; n < Nics; n++) {
        h->nics[n].memory = std::make_unique<AxiMemory>(h->events, n, data_width, memory_bytes, seed * 64 + n);
        h->nics[n].host = std::make_unique<Host>(h->events, n, seed * 64 + 2 + n);
        for (int p = 0; p < planes; p++) {
            h->nics[n].links.push_back(std::make_unique<Link>(h->shared, n, p, port_width, seed * 64 + 4 + n * 8 + p));
            h->shared.link_up[n][p] = true;
        }
    }
    h->ready = true;
}

int h_in_words() { return Nics * h->words.in_size(); }
int h_out_words() { return Nics * h->words.out_size(); }
uint64_t h_clock() { return h->events.clock; }
uint64_t h_still() { return h->events.clock - h->last_activity; }  // clocks since something moved
uint32_t h_tick(int nic) { return h->nics[nic].tick; }

void h_arm(uint64_t clock, uint64_t event_bytes, uint64_t completions, uint64_t answers, uint64_t quiet) {
    h->stop = {clock, event_bytes, completions, answers, quiet};
    h->last_activity = h->events.clock;
    h->armed = true;
}

const uint8_t* h_events(uint64_t* size) {
    *size = h->events.bytes().size();
    return h->events.bytes().data();
}
void h_events_clear() { h->events.clear(); }

// Sets a number of a link, memory or host; -1 if there is no such name.
int h_set(int nic, int plane, const char* name, int64_t value) {
    const std::string key = name;
    Nic& n = h->nics[nic];
    AxiMemory& m = *n.memory;
    Host& host = *n.host;
    LinkSettings& s = n.links[plane]->settings;
    const struct { const char* name; int64_t* at; } table[] = {
        {"delay", &s.delay}, {"jitter", &s.jitter}, {"drop", &s.drop}, {"corrupt", &s.corrupt}, {"duplicate", &s.duplicate},
        {"reorder", &s.reorder}, {"reorder_clocks", &s.reorder_clocks}, {"mark", &s.mark}, {"trim", &s.trim},
        {"trim_lasthop", &s.trim_lasthop}, {"trim_cut_lengths", &s.trim_cut_lengths}, {"tx_stall", &s.tx_stall}, {"tx_lazy", &s.tx_lazy},
        {"tx_period", &s.tx_period}, {"rx_gap", &s.rx_gap},
        {"aw_gap", &m.aw_gap}, {"w_gap", &m.w_gap}, {"b_gap", &m.b_gap}, {"ar_gap", &m.ar_gap}, {"r_gap", &m.r_gap},
        {"latency_min", &m.latency_min}, {"latency_max", &m.latency_max}, {"out_of_order", &m.out_of_order}, {"outstanding", &m.outstanding},
        {"axil_gap", &host.gap}, {"cq_poll", &host.cq_poll}, {"cq_period", &host.cq_period}};
    if (key == "outstanding" && value < 1) return 1;  // such a memory would never answer
    for (const auto& entry : table)
        if (key == entry.name) {
            *entry.at = value;
            return 0;
        }
    if (key == "up") {
        h->shared.link_up[nic][plane] = value;
        h->events.put(EventType::Link, nic, plane, 0, 0, value, nullptr, 0);
        return 0;
    }
    if (key == "dscp_trimmed") h->shared.dscp_trimmed = static_cast<int>(value);
    else if (key == "dscp_trimmed_lasthop") h->shared.dscp_trimmed_lasthop = static_cast<int>(value);
    else return -1;
    return 0;
}

// Reads a counter of a link (CounterNames) or of a memory or host; -1 if there is no such name.
int64_t h_counter(int nic, int plane, const char* name) {
    const std::string key = name;
    const Nic& n = h->nics[nic];
    for (int i = 0; i < CounterCount; i++)
        if (key == CounterNames[i]) return n.links[plane]->counters[i];
    const AxiMemory& m = *n.memory;
    if (key == "write_bursts") return m.write_bursts;
    if (key == "read_bursts") return m.read_bursts;
    if (key == "write_bytes") return m.write_bytes;
    if (key == "read_bytes") return m.read_bytes;
    if (key == "write_errors") return m.write_errors;
    if (key == "read_errors") return m.read_errors;
    if (key == "completions") return n.host->cq_count;
    if (key == "host_waiting") return static_cast<int64_t>(n.host->waiting());
    if (key == "records") return h->records;
    if (key == "idle") {
        bool idle = n.memory->idle() && n.host->idle();
        for (const auto& link : n.links) idle = idle && link->idle();
        return idle;
    }
    return -1;
}

int h_rule(int nic, int plane, int opcode_low, int opcode_high, int rtx, int qp, int64_t psn, int64_t ev, int64_t skip, int64_t count, int action,
           int64_t argument) {
    Rule rule;
    rule.nic = nic, rule.plane = plane, rule.opcode_low = opcode_low, rule.opcode_high = opcode_high, rule.rtx = rtx, rule.qp = qp;
    rule.psn = psn, rule.ev = ev, rule.skip = skip, rule.count = count;
    rule.action = static_cast<Action>(action);
    rule.argument = argument;
    h->shared.rules.push_back(rule);
    return static_cast<int>(h->shared.rules.size()) - 1;
}
void h_rule_clear(int rule) { h->shared.rules[rule].active = false; }
int64_t h_rule_hits(int rule) { return h->shared.rules[rule].hits; }

void h_inject(int nic, int plane, const uint8_t* data, uint64_t length, int64_t delay, int bad) {
    h->nics[1 - nic].links[plane]->inject(data, length, delay, bad);  // arrives at `nic`
}

void h_queue(int nic, const uint32_t* operations, int count) {
    for (int i = 0; i < count; i++) {
        HostOp op;
        memcpy(&op, operations + 6 * i, sizeof op);
        h->nics[nic].host->queue(op);
    }
}
void h_cq(int nic, const uint32_t* registers, uint32_t pop) {
    memcpy(h->nics[nic].host->cq_registers, registers, sizeof h->nics[nic].host->cq_registers);
    h->nics[nic].host->cq_pop = pop;
}

uint8_t* h_memory(int nic) { return h->nics[nic].memory->bytes(); }
void h_memory_write(int nic, uint64_t address, const uint8_t* data, uint64_t length) {
    memcpy(h->nics[nic].memory->bytes() + address, data, length);
    h->events.put(EventType::Memory, nic, 0, 0, 0, address, data, length);
}
void h_error_range(int nic, uint64_t low, uint64_t high, int read, int write) { h->nics[nic].memory->add_error_range(low, high, read, write); }
void h_error_ranges_clear(int nic) { h->nics[nic].memory->clear_error_ranges(); }

// Starts capture files prefix<plane>_sent.pcap and prefix<plane>_delivered.pcap; an empty prefix ends the capture.
void h_pcap(const char* prefix) {
    h->shared.sent_pcap.clear();
    h->shared.delivered_pcap.clear();
    if (!*prefix) return;
    for (int p = 0; p < h->words.planes; p++) {
        h->shared.sent_pcap.push_back(std::make_unique<Pcap>(std::string(prefix) + std::to_string(p) + "_sent.pcap"));
        h->shared.delivered_pcap.push_back(std::make_unique<Pcap>(std::string(prefix) + std::to_string(p) + "_delivered.pcap"));
    }
}

}  // extern "C"
