// A connection: either side gets any bytes, before, during and after the handshake, in pieces, with
// time passing; valid frames among them on request.
#include <optional>

#include "fuzz.h"
#include "transport/calls/connection.h"

namespace strata::fuzz {
namespace {

using namespace transport;  // NOLINT

// The same input has to do the same thing.
class Counting final : public Entropy {
 public:
  void fill(char* out, size_t bytes) override {
    for (size_t i = 0; i < bytes; i++) out[i] = static_cast<char>(next_++);
  }

 private:
  uint8_t next_ = 1;
};

Secret secret() {
  std::array<char, Secret::kBytes> bytes;
  bytes.fill('s');
  return Secret(bytes);
}

constexpr ConnectionLimits kLimits{.payload_bytes_max = 1000};

// One end, and what must hold of it whatever it is told.
class End {
 public:
  explicit End(Connection* connection) : connection_(connection) {}
  std::string take_output() {
    std::string out;
    while (connection_->output().waiting() > 0) {
      Bytes piece;
      (void)connection_->output().front(absl::MakeSpan(&piece, 1));
      out.append(piece);
      connection_->output().consume(piece.size());
    }
    connection_->note_written(now_ns_);
    return out;
  }
  void receive(Bytes bytes) {
    const Status status = connection_->receive(bytes, now_ns_, [this](const Frame& frame) {
      FUZZ_CHECK(connection_->ready());  // CN1
      FUZZ_CHECK(!failed_);
      FUZZ_CHECK(frame.payload.size() <= kLimits.payload_bytes_max);
      FUZZ_CHECK(frame.header.kind() ==
                 (connection_->is_server() ? FrameKind::kRequest : FrameKind::kReply));  // CN3
      frames_++;
      return true;
    });
    note(status);
  }
  void tick(uint64_t ns) {
    now_ns_ += ns;
    note(connection_->tick(now_ns_));
    if (!failed_) FUZZ_CHECK(connection_->next_tick_ns() > now_ns_);
  }
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  void note(const Status& status) {
    FUZZ_CHECK(!failed_ || !status.ok());  // CN2
    failed_ = !status.ok();
    FUZZ_CHECK(failed_ == (connection_->refusal() != Refusal::count));
    // What it says unasked is little.
    FUZZ_CHECK(connection_->output().waiting() <= 512);
  }
  Connection* const connection_;
  uint64_t now_ns_ = 0;
  uint64_t frames_ = 0;
  bool failed_ = false;
};

std::string make_frame(Input* input) {
  FrameHeader header;
  header.flags = input->u8() % 4;
  header.method = input->u8();
  header.request_id = input->u8();
  const std::string payload = input->take_some(input->u16() % 1100);
  std::string frame(kFrameHeaderBytes, '\0');
  encode_header(header, payload, frame.data());
  return frame + payload;
}

}  // namespace
}  // namespace strata::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;             // NOLINT
  using namespace strata::transport;  // NOLINT
  fuzz::Input input(data, size);
  fuzz::Counting entropy;
  const uint8_t mode = input.u8();
  const Manner manner = (mode & 1) != 0 ? Manner::kLively : Manner::kQuiet;
  Connection client(fuzz::secret(), Hello{.manner = manner, .channel_id = mode}, fuzz::kLimits,
                    &entropy, 0);
  Connection server(fuzz::secret(), 1, fuzz::kLimits, &entropy, 0);
  fuzz::End client_end(&client), server_end(&server);
  for (int steps = 0; !input.empty() && steps < 200; steps++) {
    const uint8_t what = input.u8();
    fuzz::End& target = (what & 1) != 0 ? client_end : server_end;
    fuzz::End& other = (what & 1) != 0 ? server_end : client_end;
    switch (what >> 1 & 3) {
      case 0:
        target.receive(other.take_output());  // what it really has to say
        break;
      case 1: {  // the same, changed
        std::string said = other.take_output();
        if (!said.empty()) {
          const size_t at = input.u16() % said.size();
          said[at] = static_cast<char>(said[at] ^ input.u8());
          if ((what & 8) != 0) said.resize(at);
        }
        target.receive(said);
        break;
      }
      case 2:
        target.receive((what & 8) != 0 ? input.take_some(what >> 2) : fuzz::make_frame(&input));
        break;
      case 3:
        (void)target.take_output();
        target.tick(input.u16() * 50'000ull);
        break;
    }
  }
  return 0;
}
