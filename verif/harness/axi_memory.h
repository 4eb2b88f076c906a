// Host memory of one NIC behind an AXI4 slave with random latencies and ready gaps, error ranges and protocol checks.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "events.h"

namespace harness {

constexpr int MaxBeatBytes = 64;

struct AxiRequest {  // AW or AR
    bool valid = false;
    uint64_t addr = 0;
    uint32_t control = 0;  // id 7:0, len 15:8, size 18:16, burst 20:19
    int id() const { return control & 0xFF; }
    int beats() const { return (control >> 8 & 0xFF) + 1; }
    int size() const { return control >> 16 & 7; }
    int burst() const { return control >> 19 & 3; }
    bool operator==(const AxiRequest& o) const { return valid == o.valid && addr == o.addr && control == o.control; }
};

struct AxiWrite {
    bool valid = false, last = false;
    uint64_t strobe = 0;
    uint8_t data[MaxBeatBytes] = {};
};

struct AxiIn {  // from the NIC
    AxiRequest aw, ar;
    AxiWrite w;
    bool bready = false, rready = false;
};

struct AxiOut {  // to the NIC
    bool awready = false, wready = false, arready = false;
    bool bvalid = false, rvalid = false, rlast = false;
    int bid = 0, bresp = 0, rid = 0, rresp = 0;
    uint8_t rdata[MaxBeatBytes] = {};
};

class AxiMemory {
public:
    AxiMemory(EventStream& events, int nic, int data_width, uint64_t size, uint64_t seed);
    ~AxiMemory();
    AxiMemory(const AxiMemory&) = delete;

    void clock(const AxiIn& in);
    AxiOut out;
    uint8_t* bytes() { return memory_; }
    uint64_t size() const { return size_; }
    size_t unanswered_writes() const { return writes_.size() + (write_open_ ? 1 : 0); }
    bool idle() const { return !unanswered_writes() && requests_.empty() && reads_.empty() && beats_.empty() && !out.bvalid && !out.rvalid; }
    bool moved = false;  // something was transferred in this clock
    void add_error_range(uint64_t low, uint64_t high, bool read, bool write) { errors_.push_back({low, high, read, write}); }
    void clear_error_ranges() { errors_.clear(); }

    // Chances in parts per million a clock, latencies in clocks.
    int64_t aw_gap = 0, w_gap = 0, b_gap = 0, ar_gap = 0, r_gap = 0, latency_min = 4, latency_max = 4, out_of_order = 0, outstanding = 16;
    // Statistics
    int64_t write_bursts = 0, read_bursts = 0, write_bytes = 0, read_bytes = 0, write_errors = 0, read_errors = 0;

private:
    struct ErrorRange {
        uint64_t low, high;
        bool read, write;
    };
    struct Piece {  // one beat of a write, kept until its response leaves
        uint64_t addr, strobe;
        uint8_t data[MaxBeatBytes];
    };
    struct Job {
        AxiRequest request;
        uint64_t due = 0;
        bool error = false;
        std::vector<Piece> pieces;
        int beat = 0;
    };
    void fail(const std::string& text) { events_.error(nic_, "m_axi: " + text); }
    void check_request(const char* channel, const AxiRequest& request);
    void check_stable(const AxiIn& in);
    bool is_error(const AxiRequest& request, bool write) const;
    void take_write_data();
    int choose(const std::deque<Job>& jobs);
    void clock_write(const AxiIn& in);
    void clock_read(const AxiIn& in);

    EventStream& events_;
    int nic_, beat_bytes_;
    uint8_t* memory_;
    uint64_t size_;
    Random random_;
    std::vector<ErrorRange> errors_;
    std::deque<AxiRequest> requests_;  // AW taken, data not complete
    std::deque<AxiWrite> beats_;       // W taken, not yet given to a request
    bool write_open_ = false, reading_ = false;
    Job open_;                 // the write whose data arrives
    std::deque<Job> writes_;   // complete, response to come
    std::deque<Job> reads_;    // AR taken
    Job streaming_;            // the read whose beats leave
    AxiIn before_;  // of the clock before, and what had to wait in it
    bool stalled_aw_ = false, stalled_ar_ = false, stalled_w_ = false;
};

}  // namespace harness
