// The host of one NIC: an AXI4-Lite master that works off a queue of register operations and reads completions by itself.
#pragma once

#include <deque>

#include "events.h"

namespace harness {

struct LiteIn {  // from the NIC
    bool awready = false, wready = false, bvalid = false, arready = false, rvalid = false, irq = false;
    uint32_t bresp = 0, rresp = 0, rdata = 0;
};

struct LiteOut {  // to the NIC
    bool awvalid = false, wvalid = false, bready = false, arvalid = false, rready = false;
    uint32_t awaddr = 0, wdata = 0, wstrb = 0, araddr = 0;
};

enum class Op : uint32_t { Write = 0, Read = 1, Poll = 2, Wait = 3 };

struct HostOp {  // as Python passes it: 6 words
    uint32_t op, address, value, mask, tag, limit;
    // Write: value with byte enables `mask`; answered if tag != 0.  Read: answered with the value.
    // Poll: reads until (read & mask) == value, at most `limit` times, then answered.  Wait: `limit` clocks.
};

class Host {
public:
    Host(EventStream& events, int nic, uint64_t seed) : events_(events), nic_(nic), random_(seed) {}
    void clock(const LiteIn& in, uint64_t unanswered_writes);
    void queue(const HostOp& op) { operations_.push_back(op); }
    bool idle() const { return operations_.empty() && step_ == Step::Idle; }
    size_t waiting() const { return operations_.size(); }

    LiteOut out;
    bool moved = false;  // a transfer of a queued operation (reading an empty completion queue does not count)
    int64_t gap = 0;       // chance in parts per million a clock that a channel waits
    int64_t cq_poll = 1;   // 0: completions are left alone
    int64_t cq_period = 0; // clocks between looks at the queue without irq; 0: only on irq
    int64_t cq_count = 0;
    uint32_t cq_registers[5] = {}, cq_pop = 0;  // addresses of INFO, WR_ID_LO, WR_ID_HI, LENGTH, IMM and of POP

private:
    enum class Step { Idle, Operation, Completion };
    void start_read(uint32_t address);
    void start_write(uint32_t address, uint32_t value, uint32_t strobe);
    void finished(uint32_t value, uint32_t response, uint64_t unanswered_writes);
    void answer(uint32_t value, uint32_t response);
    void begin_next(const LiteIn& in);

    EventStream& events_;
    int nic_;
    Random random_;
    std::deque<HostOp> operations_;
    Step step_ = Step::Idle;
    bool reading_ = false, writing_ = false;             // a transaction is open
    bool want_aw_ = false, want_w_ = false, want_ar_ = false;  // requests not yet on the bus
    uint32_t address_ = 0, data_ = 0, strobe_ = 0, polls_ = 0;
    uint32_t completion_[5] = {};
    int completion_step_ = 0;
    bool completion_last_ = false;  // the previous turn went to the completion queue
    uint64_t wait_until_ = 0, next_look_ = 0;
    LiteIn before_;  // of the clock before, and what had to wait in it
    bool stalled_b_ = false, stalled_r_ = false;
};

}  // namespace harness
