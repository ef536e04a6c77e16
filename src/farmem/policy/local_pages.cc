#include "farmem/policy/local_pages.h"

#include <utility>

#include "base/assert.h"

namespace strata::farmem {

StatusOr<std::unique_ptr<LocalPages>> LocalPages::make(const PolicyOptions& options,
                                                       uint64_t pages) {
  STRATA_RETURN_IF_ERROR(check_policy(options));
  if (pages == 0) return error_invalid_argument("far memory must hold at least one page");
  STRATA_ASSIGN_OR_RETURN(MappedMemory index, MappedMemory::map(pages * sizeof(Node)));
  return std::unique_ptr<LocalPages>(
      new LocalPages(shares_of(options), options.frames, pages, std::move(index)));
}

LocalPages::LocalPages(const Shares& shares, uint32_t frames, uint64_t pages, MappedMemory index)
    : shares_(shares),
      pages_(pages),
      index_(std::move(index)),
      frames_(frames + 1),
      sets_(shares.sets) {
  for (Node node = 1; node <= frames; node++) frames_[node].after = std::exchange(free_, node);
}

LocalPages::Node& LocalPages::node_of(uint64_t page) const noexcept {
  STRATA_ASSERT(page < pages_);
  return reinterpret_cast<Node*>(index_.get())[page];
}

Place LocalPages::place(uint64_t page) const noexcept { return frames_[node_of(page)].place; }

void LocalPages::append(List* list, Node node) noexcept {
  frames_[node].before = list->last;
  frames_[node].after = 0;
  (list->last == 0 ? list->first : frames_[list->last].after) = node;
  list->last = node;
  list->count++;
}

void LocalPages::unlink(List* list, Node node) noexcept {
  const Frame& frame = frames_[node];
  (frame.before == 0 ? list->first : frames_[frame.before].after) = frame.after;
  (frame.after == 0 ? list->last : frames_[frame.after].before) = frame.before;
  list->count--;
}

void LocalPages::release(Node node) noexcept {
  node_of(frames_[node].page) = 0;
  frames_[node].place = Place::kAway;
  frames_[node].after = std::exchange(free_, node);
}

void LocalPages::make_room_among_staged(Moves* moves) noexcept {
  if (staged_.count < shares_.staged) return;
  for (uint32_t i = 0; i < shares_.batch; i++) {
    const Node oldest = staged_.first;
    moves->evict.push_back({frames_[oldest].page, oldest - 1});
    unlink(&staged_, oldest);
    release(oldest);
  }
}

void LocalPages::bring(uint64_t page, Moves* moves) noexcept {
  Node node = node_of(page);
  STRATA_ASSERT(frames_[node].place != Place::kMapped);
  if (node != 0) unlink(&staged_, node);
  List& set = set_of(page);
  if (set.count == shares_.ways) {
    make_room_among_staged(moves);
    const Node victim = set.first;
    unlink(&set, victim);
    append(&staged_, victim);
    frames_[victim].place = Place::kStaged;
    moves->stage.push_back({frames_[victim].page, victim - 1});
    mapped_--;
  }
  if (node == 0) {
    node = free_;
    STRATA_ASSERT(node != 0);  // FM1: there are as many as mapped and staged pages may be
    free_ = frames_[node].after;
    frames_[node].page = page;
    node_of(page) = node;
  }
  frames_[node].place = Place::kMapped;
  append(&set, node);
  mapped_++;
}

void LocalPages::tidy(Moves* moves) noexcept { make_room_among_staged(moves); }

void LocalPages::forget(uint64_t page) noexcept {
  const Node node = node_of(page);
  if (node == 0) return;
  if (frames_[node].place == Place::kMapped) {
    unlink(&set_of(page), node);
    mapped_--;
  } else {
    unlink(&staged_, node);
  }
  release(node);
}

}  // namespace strata::farmem
