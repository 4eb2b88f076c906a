// The fabric between two NICs: one Link per plane and direction, with random and directed faults.
#pragma once

#include <array>
#include <cstdio>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "events.h"

namespace harness {

// What happened to frames of a link. Frames that enter: Sent + Duplicated + Injected. They end as Delivered or one of the losses.
enum Counter {
    Sent, Delivered, Dropped, DirectedDrop, Blackhole, Down, Corrupted, Duplicated, Reordered, Marked, Trimmed, Delayed, Injected,
    Bad,  // frames that left the NIC with tuser set; dropped, as a switch does
    CounterCount
};
extern const char* const CounterNames[CounterCount];

enum class Action { Drop = 0, Delay, Corrupt, Duplicate, Mark, Trim, TrimLastHop, Blackhole };

// "Do ACTION to frames that match, leaving out the first SKIP of them, at most COUNT times." -1 matches everything.
struct Rule {
    int nic = -1, plane = -1, opcode_low = 0, opcode_high = 255, rtx = -1, qp = -1;
    int64_t psn = -1, ev = -1, skip = 0, count = -1;
    Action action = Action::Drop;
    int64_t argument = 0;
    bool active = true;
    int64_t seen = 0, hits = 0;
};

// Headers of a frame as far as the fabric needs them; `valid` is false for what is not a whole IP/UDP/BTH packet.
struct FrameInfo {
    bool valid = false, ipv4 = false;
    int udp_at = 0, bth_at = 0, opcode = 0, rtx = 0, qp = 0, ts = 0, end = 0;
    int64_t psn = 0, ev = 0;
    explicit FrameInfo(const std::vector<uint8_t>& bytes);
};

struct LinkSettings {  // chances in parts per million a frame (gaps: a clock), times in clocks
    int64_t delay = 100, jitter = 0, drop = 0, corrupt = 0, duplicate = 0, reorder = 0, reorder_clocks = 500, mark = 0, trim = 0,
            trim_lasthop = 0, trim_cut_lengths = 0;
    int64_t tx_stall = 0, tx_lazy = 0, tx_period = 1, rx_gap = 0;
};

constexpr int MaxPortBytes = 64;

struct Beat {
    bool valid = false, last = false, user = false;
    uint64_t keep = 0;
    uint8_t data[MaxPortBytes] = {};
};

// A capture file with nanosecond times, link type Ethernet.
class Pcap {
public:
    explicit Pcap(const std::string& path);
    ~Pcap() {
        if (file_) fclose(file_);
    }
    void write(uint64_t nanoseconds, const std::vector<uint8_t>& bytes);

private:
    FILE* file_;
};

struct Shared {  // what the links share
    EventStream& events;
    std::vector<Rule> rules;
    uint64_t next_frame = 0;
    double clock_ns = 8;
    int dscp_trimmed = 12, dscp_trimmed_lasthop = 16;
    std::vector<std::unique_ptr<Pcap>> sent_pcap, delivered_pcap;  // per plane, empty: no capture
    bool link_up[2][8] = {};
};

class Link {  // from the transmitter of `nic` to the receiver of the other NIC
public:
    Link(Shared& shared, int nic, int plane, int port_width, uint64_t seed);
    void clock_tx(const Beat& in);     // in: what the NIC drives this clock; out: tx_ready
    void clock_rx(bool ready);         // ready: of the receiving NIC; out: rx
    void inject(const uint8_t* data, size_t length, int64_t delay, bool bad);
    bool idle() const { return incoming_.empty() && queue_.empty() && !rx.valid; }

    LinkSettings settings;
    bool tx_ready = false, moved = false;
    Beat rx;
    std::array<int64_t, CounterCount> counters{};

private:
    struct Frame {
        uint64_t due, order, id;
        std::vector<uint8_t> bytes;
        bool same, bad;
        bool operator<(const Frame& o) const { return due != o.due ? due > o.due : order > o.order; }
    };
    void enter(std::vector<uint8_t> bytes, bool bad);
    void lose(uint64_t id, Counter cause);
    void corrupt(std::vector<uint8_t>& bytes, const FrameInfo& info, int64_t bit);
    bool mark(std::vector<uint8_t>& bytes, const FrameInfo& info);
    bool trim(std::vector<uint8_t>& bytes, const FrameInfo& info, bool last_hop);
    void push(uint64_t id, std::vector<uint8_t> bytes, bool same, bool bad, uint64_t due);
    void next_beat();

    Shared& shared_;
    int nic_, plane_, beat_bytes_;
    Random random_;
    std::vector<uint8_t> incoming_;
    Beat before_;
    bool stalled_ = false;  // before_ had to wait
    std::priority_queue<Frame> queue_;
    uint64_t order_ = 0, last_due_ = 0, tx_clock_ = 0;
    bool sending_ = false;
    Frame current_;
    size_t offset_ = 0;
};

}  // namespace harness
