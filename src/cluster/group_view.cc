#include "cluster/group_view.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/diag.h"

namespace strata::cluster {

namespace {

// What became of the node's place in `before`.
std::string fate_of(const std::string& node, size_t place, const StorageGroup& before,
                    const Placement& placement, const StorageGroup* group) {
  const std::string when =
      " in generation " + std::to_string(placement.generation) + " of the placement";
  const bool is_new = group != nullptr && place < group->nodes.size() &&
                      !before.place_of(group->nodes[place]).has_value();
  if (is_new && group->nodes.size() == before.nodes.size())
    return node + " was replaced by " + group->nodes[place] + when;
  return node + " was taken out of its storage group" + when;
}

}  // namespace

GroupView::GroupView(std::string node, uint64_t generation, StorageGroup group)
    : node_(std::move(node)), generation_(generation), group_(std::move(group)), place_(0) {
  const auto place = group_.place_of(node_);
  STRATA_ASSERT(place.has_value());
  place_ = *place;
  spare_ = is_last();
}

void GroupView::update(const Placement& placement) {
  std::string why;
  {
    const MutexLock lock(mutex_);
    if (placement.generation <= generation_) return;  // GV2
    generation_ = placement.generation;
    const auto group =
        std::find_if(placement.groups.begin(), placement.groups.end(),
                     [&](const auto& g) STRATA_REQUIRES(mutex_) { return g.id == group_.id; });
    const bool known = group != placement.groups.end();
    const auto place = known ? group->place_of(node_) : std::nullopt;
    if (!place.has_value()) {  // GV1
      if (why_out_.empty())
        why = why_out_ = fate_of(node_, place_, group_, placement, known ? &*group : nullptr);
      out_.store(true, std::memory_order_release);
    }
    STRATA_ASSERT(place.has_value() || !why_out_.empty());
    if (why_out_.empty()) place_ = *place;
    if (known && why_out_.empty()) group_ = *group;
    spare_ = why_out_.empty() && is_last();
  }
  if (!why.empty())
    diag(Severity::kWarning, "%s; this process serves nothing any more and can be stopped",
         why.c_str());
}

Status GroupView::may_serve() const {
  if (!out_.load(std::memory_order_acquire)) return ok_status();
  return error_peer_down(out_of_it());
}

std::string GroupView::out_of_it() const {
  const MutexLock lock(mutex_);
  return why_out_;
}

StorageGroup GroupView::group() const {
  const MutexLock lock(mutex_);
  return group_;
}

uint64_t GroupView::generation() const {
  const MutexLock lock(mutex_);
  return generation_;
}

std::string GroupView::node_at(quorum::ReplicaIndex replica) const {
  const MutexLock lock(mutex_);
  return replica < group_.nodes.size() ? group_.nodes[replica] : std::string();
}

}  // namespace strata::cluster
