#include "axi_memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

namespace harness {

namespace {
constexpr int SlaveError = 2;
constexpr size_t MaxEarlyBeats = 256;  // write data accepted ahead of its address

std::string hex(uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%#llx", static_cast<unsigned long long>(value));
    return text;
}
}  // namespace

AxiMemory::AxiMemory(EventStream& events, int nic, int data_width, uint64_t size, uint64_t seed)
    : events_(events), nic_(nic), beat_bytes_(data_width / 8), size_(size), random_(seed) {
    // Untouched pages of the mapping cost nothing, so a large memory is free.
    void* map = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        perror("harness: host memory");
        abort();
    }
    memory_ = static_cast<uint8_t*>(map);
}

AxiMemory::~AxiMemory() { munmap(memory_, size_); }

void AxiMemory::check_request(const char* channel, const AxiRequest& request) {
    const uint64_t start = request.addr, aligned = start & ~static_cast<uint64_t>(beat_bytes_ - 1);
    const uint64_t last = aligned + static_cast<uint64_t>(request.beats()) * beat_bytes_ - 1;
    const std::string what = std::string(channel) + " " + hex(start) + ", " + std::to_string(request.beats()) + " beats: ";
    if (1 << request.size() != beat_bytes_) fail(what + "beats of " + std::to_string(1 << request.size()) + " bytes on a bus of " + std::to_string(beat_bytes_));
    if (request.burst() != 1) fail(what + "burst type " + std::to_string(request.burst()) + " is not INCR");
    if (start >> 12 != last >> 12) fail(what + "crosses a 4 KiB boundary");
}

void AxiMemory::check_stable(const AxiIn& in) {
    if (stalled_aw_ && !(in.aw == before_.aw)) fail("awvalid or its payload changed before awready");
    if (stalled_ar_ && !(in.ar == before_.ar)) fail("arvalid or its payload changed before arready");
    const AxiWrite &now = in.w, &was = before_.w;
    if (stalled_w_ && !(now.valid && now.last == was.last && now.strobe == was.strobe && !memcmp(now.data, was.data, beat_bytes_)))
        fail("wvalid or its payload changed before wready");
    // `out` is what we drive in the clock that ends now.
    stalled_aw_ = in.aw.valid && !out.awready;
    stalled_ar_ = in.ar.valid && !out.arready;
    stalled_w_ = in.w.valid && !out.wready;
}

bool AxiMemory::is_error(const AxiRequest& request, bool write) const {
    const uint64_t low = request.addr & ~static_cast<uint64_t>(beat_bytes_ - 1);
    const uint64_t high = low + static_cast<uint64_t>(request.beats()) * beat_bytes_;
    if (high > size_ || high < low) return true;  // nothing lives there
    for (const ErrorRange& range : errors_)
        if ((write ? range.write : range.read) && low < range.high && range.low < high) return true;
    return false;
}

// The earliest due job, in order within one ID. Index, or -1.
int AxiMemory::choose(const std::deque<Job>& jobs) {
    int found = -1, seen = 0;
    for (size_t i = 0; i < jobs.size(); i++) {
        bool first_of_id = true;
        for (size_t k = 0; k < i && first_of_id; k++) first_of_id = jobs[k].request.id() != jobs[i].request.id();
        if (first_of_id && jobs[i].due <= events_.clock) {
            if (found < 0 || random_.below(++seen + 1) == 0) found = static_cast<int>(i);
        }
        if (!out_of_order) break;  // in order over all IDs
    }
    return found;
}

void AxiMemory::take_write_data() {
    while (!beats_.empty()) {
        if (!write_open_) {
            if (requests_.empty()) return;
            open_ = Job();
            open_.request = requests_.front();
            open_.error = is_error(open_.request, true);
            requests_.pop_front();
            write_open_ = true;
        }
        const AxiWrite beat = beats_.front();
        beats_.pop_front();
        Piece piece;
        piece.addr = (open_.request.addr & ~static_cast<uint64_t>(beat_bytes_ - 1)) + static_cast<uint64_t>(open_.pieces.size()) * beat_bytes_;
        piece.strobe = beat.strobe;
        memcpy(piece.data, beat.data, beat_bytes_);
        if (open_.pieces.empty() && beat.strobe & ((1ull << (open_.request.addr & (beat_bytes_ - 1))) - 1))
            fail("strobe " + hex(beat.strobe) + " writes below the burst's address " + hex(open_.request.addr));
        open_.pieces.push_back(piece);
        const bool last = static_cast<int>(open_.pieces.size()) == open_.request.beats();
        if (beat.last != last) {
            fail("wlast = " + std::to_string(beat.last) + " on beat " + std::to_string(open_.pieces.size()) + " of " + std::to_string(open_.request.beats()));
            return;
        }
        if (last) {
            open_.due = events_.clock + random_.between(latency_min, latency_max);
            writes_.push_back(std::move(open_));
            write_open_ = false;
        }
    }
}

void AxiMemory::clock_write(const AxiIn& in) {
    if (in.aw.valid && out.awready) {
        check_request("write", in.aw);
        requests_.push_back(in.aw);
        moved = true;
    }
    if (in.w.valid && out.wready) {
        beats_.push_back(in.w);
        moved = true;
    }
    take_write_data();
    if (out.bvalid && in.bready) {
        out.bvalid = false;
        moved = true;
    }
    if (!out.bvalid && !random_.chance(b_gap)) {
        const int index = choose(writes_);
        if (index >= 0) {
            // The latest legal moment for the data to land: whoever looks before the response sees the old bytes.
            const Job& job = writes_[index];
            if (!job.error)
                for (const Piece& piece : job.pieces)
                    for (int i = 0; i < beat_bytes_; i++)
                        if (piece.strobe >> i & 1) {
                            memory_[piece.addr + i] = piece.data[i];
                            write_bytes++;
                        }
            write_bursts++;
            write_errors += job.error;
            out.bvalid = true;
            out.bid = job.request.id();
            out.bresp = job.error ? SlaveError : 0;
            writes_.erase(writes_.begin() + index);
        }
    }
    const bool room = static_cast<int64_t>(requests_.size() + writes_.size()) + write_open_ < outstanding;
    out.awready = room && !random_.chance(aw_gap);
    out.wready = beats_.size() < MaxEarlyBeats && !random_.chance(w_gap);
}

void AxiMemory::clock_read(const AxiIn& in) {
    if (in.ar.valid && out.arready) {
        check_request("read", in.ar);
        Job job;
        job.request = in.ar;
        job.error = is_error(in.ar, false);
        job.due = events_.clock + random_.between(latency_min, latency_max);
        reads_.push_back(std::move(job));
        moved = true;
    }
    if (out.rvalid && in.rready) {
        out.rvalid = false;
        moved = true;
        if (out.rlast) reading_ = false;
    }
    if (!reading_) {
        const int index = choose(reads_);
        if (index >= 0) {
            streaming_ = std::move(reads_[index]);
            reads_.erase(reads_.begin() + index);
            reading_ = true;
            read_bursts++;
            read_errors += streaming_.error;
        }
    }
    if (reading_ && !out.rvalid && !random_.chance(r_gap)) {
        const AxiRequest& request = streaming_.request;
        const uint64_t addr = (request.addr & ~static_cast<uint64_t>(beat_bytes_ - 1)) + static_cast<uint64_t>(streaming_.beat) * beat_bytes_;
        if (streaming_.error) memset(out.rdata, 0xEE, beat_bytes_);
        else memcpy(out.rdata, memory_ + addr, beat_bytes_);
        read_bytes += beat_bytes_;
        out.rvalid = true;
        out.rid = request.id();
        out.rresp = streaming_.error ? SlaveError : 0;
        out.rlast = ++streaming_.beat == request.beats();
    }
    out.arready = static_cast<int64_t>(reads_.size()) + reading_ < outstanding && !random_.chance(ar_gap);
}

void AxiMemory::clock(const AxiIn& in) {
    moved = false;
    check_stable(in);
    clock_write(in);
    clock_read(in);
    before_ = in;
}

}  // namespace harness
