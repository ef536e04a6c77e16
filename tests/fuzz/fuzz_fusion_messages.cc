// Messages between servers that write the same tables and their memory node: the first byte says
// which one the rest is. What decodes says the same after it was encoded (FN2).
#include "fuzz.h"
#include "proto/fusion_messages.h"
#include "proto/resume_messages.h"

namespace {

using strata::Bytes;

template <class Decode>
void there_and_back(Bytes bytes, const Decode& decode) {
  const auto decoded = decode(bytes);
  if (!decoded.ok()) return;
  const std::string again = encode(*decoded);
  const auto second = decode(Bytes(again));
  FUZZ_CHECK(second.ok());
  FUZZ_CHECK(encode(*second) == again);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata::proto;  // NOLINT
  if (size == 0) return 0;
  const Bytes bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 33) {
    case 0:
      there_and_back(bytes, decode_fusion_join);
      break;
    case 1:
      there_and_back(bytes, decode_fusion_join_reply);
      break;
    case 2:
      there_and_back(bytes, decode_fusion_renew);
      break;
    case 3:
      there_and_back(bytes, decode_fusion_renew_reply);
      break;
    case 4:
      there_and_back(bytes, decode_fusion_caller);
      break;
    case 5:
      there_and_back(bytes, decode_ask_pages);
      break;
    case 6:
      there_and_back(bytes, decode_ask_pages_reply);
      break;
    case 7:
      there_and_back(bytes, decode_report_pages);
      break;
    case 8:
      there_and_back(bytes, decode_take_page_slots);
      break;
    case 9:
      there_and_back(bytes, decode_take_page_slots_reply);
      break;
    case 10:
      there_and_back(bytes, decode_adopt_pages);
      break;
    case 11:
      there_and_back(bytes, decode_adopt_pages_reply);
      break;
    case 12:
      there_and_back(bytes, decode_adoption_ended);
      there_and_back(bytes, decode_fusion_leave);
      there_and_back(bytes, decode_fusion_line);
      break;
    case 13:
      there_and_back(bytes, decode_write_back_pages);
      break;
    case 14:
      there_and_back(bytes, decode_fusion_events);
      break;
    case 15:
      there_and_back(bytes, decode_fusion_events_reply);
      break;
    case 16:
      there_and_back(bytes, decode_ask_owner);
      break;
    case 17:
      there_and_back(bytes, decode_answer_askers);
      break;
    case 18:
      there_and_back(bytes, decode_row_locks);
      break;
    case 19:
      there_and_back(bytes, decode_row_locks_reply);
      break;
    case 20:
      there_and_back(bytes, decode_row_lock_events);
      break;
    case 21:
      there_and_back(bytes, decode_ask_names);
      break;
    case 22:
      there_and_back(bytes, decode_report_names);
      break;
    case 23:
      there_and_back(bytes, decode_space_dropped);
      break;
    case 24:
      there_and_back(bytes, decode_space_dropped_reply);
      break;
    case 25:
      there_and_back(bytes, decode_left_spaces);
      break;
    case 26:
      there_and_back(bytes, decode_reuse_round);
      break;
    case 27:
      there_and_back(bytes, decode_begin_reuse_round_reply);
      break;
    case 28:
      there_and_back(bytes, decode_reuse_round_ended_reply);
      break;
    case 29:
      there_and_back(bytes, decode_fusion_resume);
      break;
    case 30:
      there_and_back(bytes, decode_report_held_pages);
      break;
    case 31:
      there_and_back(bytes, decode_report_held_names);
      break;
    default:
      there_and_back(bytes, decode_resume_ended);
      break;
  }
  return 0;
}
