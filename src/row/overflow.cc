// Payloads, and values kept outside the row in chains of overflow pages.
//
// Page (PageType::kOverflow): header.right_sibling = next page, header.extra = value bytes in this
// page; body: creator trx_id u64 | ordinal u32 | sequence in the chain u32 | value bytes from
// offset 80 on. Creator, ordinal and sequence tell on every hop whether the page still belongs to
// the chain; a freed page's creator is zero.
#include "row/internal/overflow.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/fault.h"
#include "row/row_store.h"

namespace strata {
namespace {

constexpr uint16_t kCreatorOffset = kPageHeaderBytes;
constexpr uint16_t kOrdinalOffset = kCreatorOffset + 8;
constexpr uint16_t kSequenceOffset = kOrdinalOffset + 4;
constexpr uint16_t kDataOffset = kSequenceOffset + 4;
static_assert(kDataOffset == 80);
constexpr uint32_t kDataBytesMax = kPageBytes - kDataOffset;
constexpr uint64_t kValueBytesMax = uint64_t{1} << 32;
constexpr uint32_t kRoomPages = 64;  // taken from the file system at a time
constexpr uint64_t kReserveBytesMax = 16u << 20;

struct ChainId {
  SpaceId space;
  TrxId creator;
  uint32_t ordinal = 0;
};

bool belongs(const char* page, const ChainId& chain, uint32_t sequence) noexcept {
  const PageHeader* header = header_of(page);
  return header->type == static_cast<uint8_t>(PageType::kOverflow) &&
         load_u64(page + kCreatorOffset) == chain.creator.value &&
         load_u32(page + kOrdinalOffset) == chain.ordinal &&
         load_u32(page + kSequenceOffset) == sequence && header->extra <= kDataBytesMax;
}

std::string describe(const ChainId& chain, uint32_t page, uint32_t sequence) {
  return "outside value " + std::to_string(chain.creator.value) + "/" +
         std::to_string(chain.ordinal) + ", part " + std::to_string(sequence) + ": page " +
         std::to_string(chain.space.value) + ":" + std::to_string(page);
}

void write_part(Mtr* mtr, MtrPage* page, const ChainId& chain, uint32_t sequence, Bytes part) {
  std::string body;
  body.reserve(kDataOffset - kCreatorOffset + part.size());
  append_u64(&body, chain.creator.value);
  append_u32(&body, chain.ordinal);
  append_u32(&body, sequence);
  body.append(part);
  mtr->init_plain(page, PageType::kOverflow, IndexId{}, part.size());
  mtr->write(page, kCreatorOffset, body);
}

// A page that is latched and initialised as part `sequence`. Nothing can fail after the allocation:
// it has latched the new page, too.
StatusOr<MtrPage*> add_page(RowContext* context, Mtr* mtr, const ChainId& chain, uint32_t sequence,
                            Bytes part) {
  STRATA_ASSIGN_OR_RETURN(const uint32_t number, context->tree.spaces->allocate(mtr, chain.space));
  StatusOr<MtrPage*> page = mtr->fix_new(PageId{chain.space.value, number});
  if (page.ok()) write_part(mtr, *page, chain, sequence, part);
  return page;
}

// RW5: the undo record that frees the chain is in the mini-transaction of its first page.
StatusOr<uint32_t> write_first(RowContext* context, Trx* trx, const ChainId& chain, Bytes part,
                               uint64_t value_bytes) {
  Mtr mtr(context->tree.pool, context->tree.log);
  STRATA_RETURN_IF_ERROR(trx->frees_room ? mtr.begin_write_to_free() : mtr.begin_write());
  StatusOr<MtrPage*> page = add_page(context, &mtr, chain, 0, part);
  Status status = page.status();
  if (status.ok()) {
    UndoRecord undo;
    undo.type = UndoType::kOverflow;
    undo.root = (*page)->id();
    undo.overflow = OverflowRef{(*page)->id().number, chain.ordinal, value_bytes, chain.creator};
    status = context->trxs->add_undo(&mtr, trx, &undo).status();
    // No undo, no page. Its map is latched and says that it is allocated, so this works; if it did
    // not, a page would be lost until the table is rebuilt, and nothing else.
    if (!status.ok()) context->tree.spaces->free(&mtr, *page).IgnoreError();
  }
  const uint32_t number = page.ok() ? (*page)->id().number : kNoPage;
  mtr.publish();
  if (!status.ok()) return status;
  return number;
}

StatusOr<uint32_t> write_next(RowContext* context, const Trx& trx, const ChainId& chain,
                              uint32_t last, uint32_t sequence, Bytes part) {
  Mtr mtr(context->tree.pool, context->tree.log);
  STRATA_RETURN_IF_ERROR(trx.frees_room ? mtr.begin_write_to_free() : mtr.begin_write());
  STRATA_ASSIGN_OR_RETURN(MtrPage * previous,
                          mtr.fix(PageId{chain.space.value, last}, LatchMode::kExclusive));
  StatusOr<MtrPage*> page = add_page(context, &mtr, chain, sequence, part);
  const uint32_t number = page.ok() ? (*page)->id().number : kNoPage;
  if (page.ok()) mtr.set_right(previous, number);
  mtr.publish();
  if (!page.ok()) return page.status();
  return number;
}

// Page numbers of the chain as far as it is there.
StatusOr<std::vector<uint32_t>> chain_pages(RowContext* context, const ChainId& chain,
                                            uint32_t first) {
  std::vector<uint32_t> pages;
  for (uint32_t number = first; number != kNoPage;) {
    Mtr mtr(context->tree.pool, context->tree.log);
    const StatusOr<MtrPage*> page =
        mtr.fix_if_written(PageId{chain.space.value, number}, LatchMode::kShared);
    if (is_not_found(page.status())) break;
    STRATA_RETURN_IF_ERROR(page.status());
    if (!belongs((*page)->page(), chain, static_cast<uint32_t>(pages.size()))) break;
    pages.push_back(number);
    number = header_of((*page)->page())->right_sibling;
  }
  return pages;
}

// Cuts the last page off the chain and frees it.
Status free_last(RowContext* context, const ChainId& chain, const std::vector<uint32_t>& pages) {
  const auto sequence = static_cast<uint32_t>(pages.size() - 1);
  Mtr mtr(context->tree.pool, context->tree.log);
  STRATA_RETURN_IF_ERROR(mtr.begin_write(Mtr::kDefaultLogBytes, true));
  MtrPage* previous = nullptr;
  if (sequence > 0) {
    STRATA_ASSIGN_OR_RETURN(
        previous, mtr.fix(PageId{chain.space.value, pages[sequence - 1]}, LatchMode::kExclusive));
  }
  STRATA_ASSIGN_OR_RETURN(
      MtrPage * page, mtr.fix(PageId{chain.space.value, pages[sequence]}, LatchMode::kExclusive));
  if (!belongs(page->page(), chain, sequence)) {
    return error_corruption(describe(chain, pages[sequence], sequence) +
                            " changed while the value was freed");
  }
  STRATA_RETURN_IF_ERROR(context->tree.spaces->free(&mtr, page));
  const char none[8] = {};
  mtr.write(page, kCreatorOffset, Bytes(none, sizeof(none)));
  if (previous != nullptr) mtr.set_right(previous, kNoPage);
  mtr.publish();
  return ok_status();
}

}  // namespace

// From the tail, one page per mini-transaction: after a crash in between the chain is shorter but
// whole.
Status row_internal::free_overflow(RowContext* context, SpaceId space, const OverflowRef& ref) {
  const ChainId chain{space, ref.creator, ref.ordinal};
  STRATA_ASSIGN_OR_RETURN(std::vector<uint32_t> pages, chain_pages(context, chain, ref.first_page));
  while (!pages.empty()) {
    STRATA_RETURN_IF_ERROR(free_last(context, chain, pages));
    pages.pop_back();
  }
  return ok_status();
}

StatusOr<OverflowRef> write_overflow(RowContext* context, Trx* trx, SpaceId space, Bytes value) {
  if (value.size() >= kValueBytesMax) return error_invalid_argument("a value is larger than 4 GiB");
  if (trx->must_rollback) return error_deadlock();
  const InterruptScope scope(&trx->interrupt);
  STRATA_RETURN_IF_ERROR(context->trxs->prepare_change(trx, undo_bytes_max(0, 0, 1)));
  const ChainId chain{space, trx->id, trx->next_overflow_ordinal++};
  const size_t parts = std::max<size_t>(1, (value.size() + kDataBytesMax - 1) / kDataBytesMax);
  OverflowRef ref{kNoPage, chain.ordinal, value.size(), chain.creator};
  uint32_t last = kNoPage;
  for (size_t i = 0; i < parts; ++i) {
    if (i % kRoomPages == 0) {
      const size_t pages = std::min<size_t>(kRoomPages, parts - i);
      STRATA_RETURN_IF_ERROR(
          context->tree.spaces->ensure_room(space, static_cast<uint32_t>(pages)));
    }
    if (i == parts / 2 && i != 0 && fault(FaultPoint::overflow_half))
      return error_no_space("fault point overflow_half");
    const Bytes part = value.substr(i * kDataBytesMax, kDataBytesMax);
    if (i == 0) {
      STRATA_ASSIGN_OR_RETURN(last, write_first(context, trx, chain, part, value.size()));
      ref.first_page = last;
    } else {
      STRATA_ASSIGN_OR_RETURN(
          last, write_next(context, *trx, chain, last, static_cast<uint32_t>(i), part));
    }
  }
  return ref;
}

Status read_overflow(RowContext* context, SpaceId space, const OverflowRef& ref, std::string* out) {
  const ChainId chain{space, ref.creator, ref.ordinal};
  out->clear();
  out->reserve(std::min(ref.bytes, kReserveBytesMax));
  uint32_t number = ref.first_page;
  for (uint32_t sequence = 0; number != kNoPage; ++sequence) {
    Mtr mtr(context->tree.pool, context->tree.log);
    STRATA_ASSIGN_OR_RETURN(MtrPage * page,
                            mtr.fix(PageId{space.value, number}, LatchMode::kShared));
    const char* bytes = page->page();
    if (!belongs(bytes, chain, sequence))
      return error_corruption(describe(chain, number, sequence) + " does not belong to it");
    out->append(bytes + kDataOffset, header_of(bytes)->extra);
    if (out->size() > ref.bytes) break;
    number = header_of(bytes)->right_sibling;
  }
  if (out->size() != ref.bytes) {
    return error_corruption(describe(chain, ref.first_page, 0) + " and its successors hold " +
                            std::to_string(out->size()) + " bytes instead of " +
                            std::to_string(ref.bytes));
  }
  return ok_status();
}

// --- payloads (RW7) ---

std::string encode_payload(const std::vector<OverflowRef>& refs, Bytes inline_bytes) {
  std::string out;
  out.reserve(1 + refs.size() * kOverflowRefBytes + inline_bytes.size());
  append_u8(&out, static_cast<uint8_t>(refs.size()));
  for (const OverflowRef& ref : refs) {
    append_u32(&out, ref.first_page);
    append_u32(&out, ref.ordinal);
    append_u64(&out, ref.bytes);
    append_u64(&out, ref.creator.value);
  }
  out.append(inline_bytes);
  return out;
}

Status decode_payload(Bytes payload, std::vector<OverflowRef>* refs, Bytes* inline_bytes) {
  refs->clear();
  ByteReader reader(payload);
  const uint8_t count = reader.u8();
  for (uint8_t i = 0; i < count && reader.ok(); ++i) {
    OverflowRef ref;
    ref.first_page = reader.u32();
    ref.ordinal = reader.u32();
    ref.bytes = reader.u64();
    ref.creator = TrxId{reader.u64()};
    refs->push_back(ref);
  }
  if (!reader.ok()) return error_corruption("a row's payload is shorter than it says");
  *inline_bytes = reader.bytes(reader.remaining());
  return ok_status();
}

}  // namespace strata
