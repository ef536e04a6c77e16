// Undo pages: every place of a page is asked for a record, and what parses is decoded and used.
// Records made of the input's bytes get a right check byte on request.
#include "fuzz.h"
#include "undo/internal/undo_page.h"

namespace strata::fuzz {
namespace {

using undo_internal::kFirstRecordOffset;
using undo_internal::kRecordPrefixBytes;

std::unique_ptr<char[]> page_of_records(Input* input, TrxId trx) {
  auto page = std::make_unique<char[]>(kPageBytes);
  std::memset(page.get(), 0, kPageBytes);
  uint32_t offset = kFirstRecordOffset;
  while (!input->empty() && offset + kRecordPrefixBytes <= kPageBytes) {
    const auto type = static_cast<UndoType>(input->u8() % 8);
    const UndoPtr previous{input->u8()};
    const std::string body =
        input->take_some(std::min<size_t>(input->u8(), kPageBytes - offset - kRecordPrefixBytes));
    std::string record;
    undo_internal::encode_raw(&record, offset, type, trx, previous, body);
    std::memcpy(page.get() + offset, record.data(), record.size());
    offset += static_cast<uint32_t>(record.size());
  }
  return page;
}

}  // namespace
}  // namespace strata::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;  // NOLINT
  fuzz::Input input(data, size);
  const TrxId trx{input.u8()};
  const std::string payload = input.take_some(input.u8());
  const auto page =
      input.u8() % 2 == 0 ? fuzz::page_from(&input) : fuzz::page_of_records(&input, trx);
  FUZZ_CHECK(undo_internal::used_bytes(page.get()) <= kPageBytes);
  std::string previous;
  for (uint32_t offset = 0; offset < kPageBytes; ++offset) {
    undo_internal::RawRecord raw;
    if (!undo_internal::parse_raw(page.get(), offset, trx, &raw)) continue;
    UndoRecord record;
    if (!undo_internal::decode_record(raw, &record).ok()) continue;
    UndoRecord again;
    std::string body;
    undo_internal::encode_body(&body, record);
    raw.body = body;
    FUZZ_CHECK(undo_internal::decode_record(raw, &again).ok());
    std::string once_more;
    undo_internal::encode_body(&once_more, again);
    FUZZ_CHECK(once_more == body);
    if (!previous_payload(record, payload, &previous).ok()) continue;
    FUZZ_CHECK(previous.size() ==
               size_t{record.prefix_bytes} + record.middle.size() + record.suffix_bytes);
  }
  return 0;
}
