#include "host.h"

namespace harness {

namespace {
constexpr uint32_t Valid = 1u << 31;
constexpr int CompletionWords = 5;
}  // namespace

void Host::start_read(uint32_t address) {
    address_ = address;
    reading_ = want_ar_ = true;
}

void Host::start_write(uint32_t address, uint32_t value, uint32_t strobe) {
    address_ = address;
    data_ = value;
    strobe_ = strobe;
    writing_ = want_aw_ = want_w_ = true;
}

void Host::answer(uint32_t value, uint32_t response) {
    const HostOp& op = operations_.front();
    if (op.tag || response) {
        events_.answers++;
        events_.put(EventType::Answer, nic_, 0, 0, op.tag, value | static_cast<uint64_t>(response) << 32, nullptr, 0);
    }
    operations_.pop_front();
    step_ = Step::Idle;
}

// The open transaction has ended.
void Host::finished(uint32_t value, uint32_t response, uint64_t unanswered_writes) {
    if (step_ == Step::Operation) {
        const HostOp& op = operations_.front();
        if (static_cast<Op>(op.op) == Op::Poll && !response && (value & op.mask) != op.value) {
            if (++polls_ < op.limit) return start_read(op.address);
            events_.error(nic_, "host: register " + std::to_string(op.address) + " stays " + std::to_string(value) + " after " + std::to_string(polls_) + " reads");
        }
        return answer(value, response);
    }
    if (response) events_.error(nic_, "host: a completion register answers with an error");
    if (completion_step_ < CompletionWords) {
        completion_[completion_step_++] = value;
        if (completion_step_ == 1 && !(value & Valid)) {
            step_ = Step::Idle;
            return;
        }
        if (completion_step_ < CompletionWords) return start_read(cq_registers[completion_step_]);
        events_.completions++;
        cq_count++;
        events_.put(EventType::Completion, nic_, 0, 0, 0, unanswered_writes, completion_, sizeof completion_);
        return start_write(cq_pop, 1, 15);
    }
    step_ = Step::Idle;
}

void Host::begin_next(const LiteIn& in) {
    const uint64_t now = events_.clock;
    const bool look = cq_poll && cq_pop && (in.irq || (cq_period && now >= next_look_));
    if (look && (operations_.empty() || !completion_last_)) {
        completion_last_ = true;
        next_look_ = now + cq_period;
        step_ = Step::Completion;
        completion_step_ = 0;
        return start_read(cq_registers[0]);
    }
    completion_last_ = false;
    if (operations_.empty()) return;
    const HostOp& op = operations_.front();
    step_ = Step::Operation;
    polls_ = 0;
    switch (static_cast<Op>(op.op)) {
        case Op::Write: return start_write(op.address, op.value, op.mask);
        case Op::Read:
        case Op::Poll: return start_read(op.address);
        case Op::Wait: wait_until_ = now + op.limit; return;
    }
}

void Host::clock(const LiteIn& in, uint64_t unanswered_writes) {
    moved = false;
    if (stalled_b_ && !(in.bvalid && in.bresp == before_.bresp)) events_.error(nic_, "s_axil: bvalid or bresp changed before bready");
    if (stalled_r_ && !(in.rvalid && in.rdata == before_.rdata && in.rresp == before_.rresp))
        events_.error(nic_, "s_axil: rvalid or its payload changed before rready");
    if (in.bvalid && !(writing_ && !want_aw_ && !want_w_ && !(out.awvalid && !in.awready) && !(out.wvalid && !in.wready)))
        events_.error(nic_, "s_axil: bvalid without a complete write");
    if (in.rvalid && !(reading_ && !want_ar_ && !(out.arvalid && !in.arready))) events_.error(nic_, "s_axil: rvalid without a read");
    stalled_b_ = in.bvalid && !out.bready;
    stalled_r_ = in.rvalid && !out.rready;
    before_ = in;

    const Step was = step_;
    if (out.awvalid && in.awready) out.awvalid = false;
    if (out.wvalid && in.wready) out.wvalid = false;
    if (out.arvalid && in.arready) out.arvalid = false;
    bool ended = false;
    uint32_t value = 0, response = 0;
    if (in.bvalid && out.bready && writing_) {
        writing_ = out.bready = false;
        ended = true;
        response = in.bresp;
        value = data_;
    } else if (in.rvalid && out.rready && reading_) {
        reading_ = out.rready = false;
        ended = true;
        response = in.rresp;
        value = in.rdata;
    }
    if (ended) {
        moved = was == Step::Operation;
        finished(value, response, unanswered_writes);
    }
    if (step_ == Step::Operation && !reading_ && !writing_ && events_.clock >= wait_until_ && static_cast<Op>(operations_.front().op) == Op::Wait)
        answer(0, 0);
    if (step_ == Step::Idle) begin_next(in);

    if (want_aw_ && !random_.chance(gap)) {
        want_aw_ = false;
        out.awvalid = true;
        out.awaddr = address_;
    }
    if (want_w_ && !random_.chance(gap)) {
        want_w_ = false;
        out.wvalid = true;
        out.wdata = data_;
        out.wstrb = strobe_;
    }
    if (want_ar_ && !random_.chance(gap)) {
        want_ar_ = false;
        out.arvalid = true;
        out.araddr = address_;
    }
    if (writing_ && !out.bready) out.bready = !random_.chance(gap);
    if (reading_ && !out.rready) out.rready = !random_.chance(gap);
}

}  // namespace harness
