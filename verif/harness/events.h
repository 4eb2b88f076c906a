// Event stream, random numbers and errors: what every part of the harness shares.
//
// The harness tells Python what happened as one stream of events in the order in which it happened. An event is a Header
// of 32 bytes and `length` bytes of payload, padded with zeros to a multiple of 8. verif/harness/stream.py reads it.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace harness {

enum class EventType : uint8_t {
    Sent = 0,        // a frame left a NIC; part = plane, id = number of the frame, payload = its bytes
    Delivered = 1,   // a NIC took a frame; part = plane; Flag::Same: the bytes are those of the Sent event with this id
    Record = 2,      // commit record; part = owner (0 requestor, 1 responder), payload = raw bits, least significant byte first
    Completion = 3,  // host read a completion; payload = 5 words INFO, WR_ID_LO, WR_ID_HI, LENGTH, IMM; aux = unanswered AXI writes
    Answer = 4,      // a host operation ended; id = its tag, aux = value read | response << 32
    Error = 5,       // a broken rule of a bus or of the harness; payload = text
    Memory = 6,      // Python wrote host memory; aux = address, payload = bytes
    Link = 7,        // a link's pin changed; part = plane, aux = 1 up, 0 down
    Lost = 8,        // the fabric lost a frame; part = plane, id = frame, aux = cause (Counter)
};

namespace Flag {
constexpr uint8_t Same = 1;  // Delivered: no payload, equal to the Sent event
constexpr uint8_t Bad = 2;   // tuser was set: the MAC calls the frame bad
}  // namespace Flag

struct Header {
    uint8_t type, nic, part, flags;
    uint32_t length;
    uint64_t clock, id, aux;
};
static_assert(sizeof(Header) == 32, "stream.py reads 32 bytes");

class EventStream {
public:
    uint64_t clock = 0;
    bool failed = false;
    uint64_t completions = 0, answers = 0;

    void put(EventType type, int nic, int part, uint8_t flags, uint64_t id, uint64_t aux, const void* data, size_t length) {
        Header header{static_cast<uint8_t>(type), static_cast<uint8_t>(nic), static_cast<uint8_t>(part), flags,
                      static_cast<uint32_t>(length), clock, id, aux};
        const size_t at = bytes_.size();
        bytes_.resize(at + sizeof header + (length + 7) / 8 * 8, 0);
        memcpy(&bytes_[at], &header, sizeof header);
        if (length) memcpy(&bytes_[at + sizeof header], data, length);
    }
    void error(int nic, const std::string& text) {
        if (failed) return;  // the first one counts; what follows is its echo
        failed = true;
        put(EventType::Error, nic, 0, 0, 0, 0, text.data(), text.size());
    }
    const std::vector<uint8_t>& bytes() const { return bytes_; }
    void clear() { bytes_.clear(); }

private:
    std::vector<uint8_t> bytes_;
};

// xorshift64*: small, fast, the same everywhere.
class Random {
public:
    explicit Random(uint64_t seed = 1) : state_(seed * 0x9E3779B97F4A7C15ull + 0x2545F4914F6CDD1Dull) {
        if (!state_) state_ = 1;
        for (int i = 0; i < 4; i++) next();
    }
    uint64_t next() {
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        return state_ * 0x2545F4914F6CDD1Dull;
    }
    uint64_t below(uint64_t n) { return n ? (next() >> 16) % n : 0; }  // 0 .. n-1
    uint64_t between(uint64_t low, uint64_t high) { return high > low ? low + below(high - low + 1) : low; }
    bool chance(int64_t ppm) { return ppm > 0 && static_cast<int64_t>(below(1000000)) < ppm; }

private:
    uint64_t state_;
};

}  // namespace harness
