#include "base/assert.h"
#include "base/page_name.h"
#include "page/record.h"
#include "redo/gone_spaces.h"
#include "redo/internal/op.h"
#include "redo/redo.h"

namespace strata::redo {
namespace {

bool is_tree(const char* page) noexcept {
  return header_of(page)->type == static_cast<uint8_t>(PageType::kTree);
}
bool is_plain(const char* page) noexcept {
  const uint8_t type = header_of(page)->type;
  return type != static_cast<uint8_t>(PageType::kAbsent) && !is_tree(page) && type <= kPageTypeMax;
}
bool infinite(uint16_t flags) noexcept { return (flags & kHighIsInfinity) != 0; }

// --- may the op be applied? Nothing is changed here (RD2). ---

bool init_fits(const Op& op) noexcept {
  if (op.key.size() > kMaxKeyBytes || op.key2.size() > kMaxKeyBytes) return false;
  return infinite(op.flags) ? op.key2.empty() : compare_bytes(op.key, op.key2) < 0;
}

bool init_plain_fits(const Op& op) noexcept {
  const uint8_t type = static_cast<uint8_t>(op.type);
  return type != static_cast<uint8_t>(PageType::kAbsent) && op.type != PageType::kTree &&
         type <= kPageTypeMax;
}

// A new key lies strictly between its neighbours, which are the fences at either end of the page.
bool insert_keeps_order(const TreePageView& view, const Op& op) noexcept {
  const uint16_t prefix = view.header()->prefix_bytes;
  const bool after_left =
      op.slot == 0 ? compare_bytes(view.low_fence().substr(prefix), op.key) <= 0
                   : compare_bytes(view.suffix(static_cast<uint16_t>(op.slot - 1)), op.key) < 0;
  if (!after_left) return false;
  if (op.slot < view.slot_count()) return compare_bytes(op.key, view.suffix(op.slot)) < 0;
  return view.has_flag(kHighIsInfinity) ||
         compare_bytes(op.key, view.high_key().substr(prefix)) < 0;
}

bool insert_fits(const char* page, const Op& op) noexcept {
  const TreePageView view(page);
  const size_t need = sizeof(Slot) + 2 + op.key.size() + op.bytes.size();
  return is_tree(page) && op.slot <= view.slot_count() && need <= view.free_bytes() &&
         value_is_valid(view.header()->level, op.bytes) && insert_keeps_order(view, op);
}

bool replace_fits(const char* page, const Op& op) noexcept {
  const TreePageView view(page);
  return is_tree(page) && op.slot < view.slot_count() &&
         value_is_valid(view.header()->level, op.bytes) &&
         view.fits_replace(op.slot, op.bytes.size());
}

// What is too short for a whole header stays settled.
bool keeps_header(Bytes value, const Op& op) noexcept {
  return value.size() >= kRecordHeaderBytes || op.offset > kRecordFlagsOffset || op.bytes.empty() ||
         is_settled(op.bytes);
}

bool patch_fits(const char* page, const Op& op) noexcept {
  const TreePageView view(page);
  return is_tree(page) && op.slot < view.slot_count() &&
         op.offset + op.bytes.size() <= view.value(op.slot).size() &&
         (view.header()->level != 0 || keeps_header(view.value(op.slot), op));
}

bool truncate_fits(const char* page, const Op& op) noexcept {
  const TreePageView view(page);
  if (!is_tree(page) || op.slot > view.slot_count()) return false;
  if (infinite(op.flags)) {
    if (!op.key2.empty()) return false;
  } else {
    if (op.key2.size() > kMaxKeyBytes || compare_bytes(view.low_fence(), op.key2) >= 0)
      return false;
    if (op.slot > 0 && view.compare_key(static_cast<uint16_t>(op.slot - 1), op.key2) >= 0)
      return false;
  }
  return fits_truncate_right(page, op.slot, op.key2, op.flags);
}

bool set_flags_fits(const char* page, const Op& op) noexcept {
  if (is_plain(page)) return true;
  return is_tree(page) && infinite(op.flags) == infinite(header_of(page)->flags);
}

bool write_fits(const char* page, const Op& op) noexcept {
  return is_plain(page) && op.offset >= kFirstWritableByte &&
         op.offset + op.bytes.size() <= kPageBytes;
}

uint32_t pending_count(const char* page) noexcept { return load_u32(page + kPendingDeletesOffset); }
char* pending_entry(char* page, uint32_t i) noexcept {
  return page + kPendingDeletesOffset + 4 + 4 * i;
}
uint32_t find_pending(char* page, uint32_t space) noexcept {
  uint32_t i = 0;
  while (i < pending_count(page) && load_u32(pending_entry(page, i)) != space) ++i;
  return i;
}

bool pending_fits(char* page, const Op& op) noexcept {
  if (header_of(page)->type != static_cast<uint8_t>(PageType::kSystem)) return false;
  const uint32_t count = pending_count(page);
  if (count > kPendingDeletesMax) return false;
  return op.kind == Kind::kPendingDeleteRemove || count < kPendingDeletesMax ||
         find_pending(page, op.number) < count;
}

// --- changes ---

void init_plain(char* page, const Op& op) noexcept {
  std::memset(page, 0, kPageBytes);
  PageHeader* h = header_of(page);
  h->format = kPageFormat;
  h->type = static_cast<uint8_t>(op.type);
  h->space = op.page_id.space;
  h->number = op.page_id.number;
  h->index_id = op.index_id.value;
  h->right_sibling = kNoPage;
  h->heap_top = kPageBytes;
  h->extra = op.extra;
}

// The image is built aside, because it must be checked as a whole before it replaces the page.
bool apply_image(char* page, const Op& op) {
  alignas(8) char image[kPageBytes];
  expand_image(op, image);
  if (header_of(image)->format != kPageFormat) return false;
  if (is_tree(image) ? !validate_tree_page(image).ok() : !is_plain(image)) return false;
  std::memcpy(page, image, kPageBytes);
  return true;
}

void pending_add(char* page, uint32_t space) noexcept {
  const uint32_t count = pending_count(page);
  if (find_pending(page, space) < count) return;
  store_u32(pending_entry(page, count), space);
  store_u32(page + kPendingDeletesOffset, count + 1);
}

void pending_remove(char* page, uint32_t space) noexcept {
  const uint32_t count = pending_count(page);
  const uint32_t at = find_pending(page, space);
  if (at == count) return;
  store_u32(pending_entry(page, at), load_u32(pending_entry(page, count - 1)));
  store_u32(pending_entry(page, count - 1), 0);
  store_u32(page + kPendingDeletesOffset, count - 1);
}

// Checks and applies; false: the page is unchanged.
bool apply_parsed(char* page, const Op& op) {
  switch (op.kind) {
    case Kind::kInit:
      if (!init_fits(op)) return false;
      init_tree_page(page, TreePageInit{.page_id = op.page_id,
                                        .index_id = op.index_id,
                                        .level = op.level,
                                        .right_sibling = op.number,
                                        .flags = op.flags,
                                        .low_fence = op.key,
                                        .high_key = op.key2});
      return true;
    case Kind::kInitPlain:
      if (!init_plain_fits(op)) return false;
      init_plain(page, op);
      return true;
    case Kind::kImage:
      return apply_image(page, op);
    case Kind::kInsert:
      if (!insert_fits(page, op)) return false;
      insert_record(page, op.slot, op.key, op.bytes);
      return true;
    case Kind::kErase:
      if (!is_tree(page) || op.slot >= header_of(page)->slot_count) return false;
      erase_record(page, op.slot);
      return true;
    case Kind::kReplace:
      if (!replace_fits(page, op)) return false;
      replace_value(page, op.slot, op.bytes);
      return true;
    case Kind::kPatch:
      if (!patch_fits(page, op)) return false;
      patch_value(page, op.slot, op.offset, op.bytes);
      return true;
    case Kind::kTruncateRight:
      if (!truncate_fits(page, op)) return false;
      truncate_right(page, op.slot, op.key2, op.number, op.flags);
      return true;
    case Kind::kSetFlags:
      if (!set_flags_fits(page, op)) return false;
      header_of(page)->flags = op.flags;
      return true;
    case Kind::kWrite:
      if (!write_fits(page, op)) return false;
      if (!op.bytes.empty()) std::memcpy(page + op.offset, op.bytes.data(), op.bytes.size());
      return true;
    case Kind::kSetRight:
      if (!is_tree(page) && !is_plain(page)) return false;
      header_of(page)->right_sibling = op.number;
      return true;
    case Kind::kPendingDeleteAdd:
      if (!pending_fits(page, op)) return false;
      pending_add(page, op.number);
      return true;
    case Kind::kPendingDeleteRemove:
      if (!pending_fits(page, op)) return false;
      pending_remove(page, op.number);
      return true;
  }
  return false;
}

Status misdirected(const char* page, const SectionView& section) {
  return error_corruption("redo for " + name_of(section.page_id) + " is applied to " +
                          name_of(page_id_of(page)));
}

bool is_one_op(Bytes ops) noexcept {
  Op op;
  size_t consumed = 0;
  return parse_op(ops, &op, &consumed) && consumed == ops.size();
}

// A later op may turn out bad, and an init or image may name another page.
Status apply_all_or_nothing(char* page, const SectionView& section) {
  alignas(8) char before[kPageBytes];
  std::memcpy(before, page, kPageBytes);
  Status status = apply_ops(page, section.ops);
  if (status.ok() && page_id_of(page) != section.page_id) status = misdirected(page, section);
  if (!status.ok()) std::memcpy(page, before, kPageBytes);
  return status;
}

}  // namespace

Status apply_op(char* page, Bytes ops, size_t* consumed) {
  Op op;
  if (!parse_op(ops, &op, consumed)) return error_corruption("redo op does not parse");
  if (!apply_parsed(page, op))
    return error_corruption("redo op of kind " + std::to_string(static_cast<int>(op.kind)) +
                            " does not fit " + name_of(page_id_of(page)));
  return ok_status();
}

Status apply_ops(char* page, Bytes ops) {
  while (!ops.empty()) {
    size_t consumed = 0;
    STRATA_RETURN_IF_ERROR(apply_op(page, ops, &consumed));
    ops.remove_prefix(consumed);
  }
  return ok_status();
}

bool SectionView::restarts_chain() const noexcept {
  if (ops.empty()) return false;
  const Kind kind = static_cast<Kind>(ops[0]);
  return kind == Kind::kInit || kind == Kind::kInitPlain || kind == Kind::kImage;
}

StatusOr<Applied> apply_section(char* page, Llsn llsn, const SectionView& section) {
  const uint64_t page_llsn = header_of(page)->llsn;
  if (page_llsn >= llsn.value) return Applied::kAlreadyThere;  // RD3
  const bool restarts = section.restarts_chain();
  if (!restarts && page_llsn != section.prev_llsn.value) return Applied::kGap;
  if (!restarts && page_id_of(page) != section.page_id) return misdirected(page, section);
  if (!restarts && is_one_op(section.ops)) {  // most sections; the op itself is all or nothing
    STRATA_RETURN_IF_ERROR(apply_ops(page, section.ops));
  } else {
    STRATA_RETURN_IF_ERROR(apply_all_or_nothing(page, section));
  }
  header_of(page)->llsn = llsn.value;
  return Applied::kApplied;
}

std::vector<SpaceId> read_pending_deletes(const char* page) {
  std::vector<SpaceId> spaces;
  if (header_of(page)->type != static_cast<uint8_t>(PageType::kSystem)) return spaces;
  const uint32_t count = std::min(pending_count(page), kPendingDeletesMax);
  for (uint32_t i = 0; i < count; ++i)
    spaces.push_back(SpaceId{load_u32(page + kPendingDeletesOffset + 4 + 4 * i)});
  return spaces;
}

void for_each_dropped_space(const SectionView& section, const std::function<void(SpaceId)>& visit) {
  Op op;
  size_t consumed = 0;
  for (Bytes ops = section.ops; !ops.empty() && parse_op(ops, &op, &consumed);
       ops.remove_prefix(consumed)) {
    if (op.kind == Kind::kPendingDeleteAdd) visit(SpaceId{op.number});
    if (op.kind != Kind::kImage) continue;
    alignas(8) char image[kPageBytes];
    expand_image(op, image);
    for (const SpaceId space : read_pending_deletes(image)) visit(space);
  }
}

void for_each_gone_space(const SectionView& section, const std::function<void(SpaceId)>& visit) {
  for_each_dropped_space(section, visit);
  Op op;
  size_t consumed = 0;
  for (Bytes ops = section.ops; !ops.empty() && parse_op(ops, &op, &consumed);
       ops.remove_prefix(consumed))
    if (op.kind == Kind::kPendingDeleteRemove) visit(SpaceId{op.number});
}

}  // namespace strata::redo
