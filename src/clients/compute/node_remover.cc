#include "clients/compute/node_remover.h"

#include <algorithm>
#include <utility>

#include "base/diag.h"
#include "base/thread_name.h"

namespace strata::clients {

namespace {

constexpr uint64_t kLookUs = 10'000;
constexpr uint64_t kRegistryPauseUs = 200'000;

std::string text(const Status& status) { return status.ok() ? std::string() : cause_of(status); }

// Nothing was changed, nor will be.
bool is_final(const Status& status) { return !may_be_repeated(status); }

}  // namespace

NodeRemover::NodeRemover(Parts parts)
    : parts_(std::move(parts)), removals_(parts_.registry, parts_.keys, parts_.stream) {
  thread_ = std::thread([this] { work(); });
  watch_ = removals_.watch([this](const StatusOr<std::optional<cluster::PendingRemoval>>& now) {
    if (!now.ok())
      diag(Severity::kError, "a request to take a storage node out cannot be read: %s",
           text(now.status()).c_str());
    const MutexLock lock(mutex_);
    pending_ = now.ok() ? *now : std::nullopt;
    changed_.notify_all();
  });
}

NodeRemover::~NodeRemover() {
  watch_.reset();
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

bool NodeRemover::pause(uint64_t us) const {
  MutexLock lock(mutex_);
  changed_.wait_for_us(lock, us, [this]() STRATA_REQUIRES(mutex_) { return stopped_; });
  return !stopped_;
}

bool NodeRemover::withdrawn(const cluster::PendingRemoval& pending) const {
  const MutexLock lock(mutex_);
  return !pending_.has_value() || pending_->version != pending.version;
}

void NodeRemover::work() {
  name_this_thread("node-remover");
  for (;;) {
    cluster::PendingRemoval pending;
    {
      MutexLock lock(mutex_);
      changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) {
        return stopped_ || (pending_.has_value() && pending_->version != done_);
      });
      if (stopped_) return;
      pending = *pending_;
    }
    handle(pending);
    done_ = pending.version;
  }
}

void NodeRemover::handle(const cluster::PendingRemoval& pending) {
  const std::string& node = pending.request.node;
  const auto placement = read_placement();
  Status status = placement.status();
  if (status.ok()) status = prepare(pending, *placement);
  if (status.ok()) status = change(pending, *placement);
  if (status.ok()) {
    diag(Severity::kInfo, "storage node %s was taken out of its group", node.c_str());
    return;
  }
  diag(Severity::kWarning, "storage node %s is not taken out of its group: %s", node.c_str(),
       text(status).c_str());
  // Who does not get this answer finds out by the placement, which stays as it is.
  (void)removals_.refuse(pending, text(status), deadline());
}

StatusOr<cluster::Placement> NodeRemover::read_placement() {
  STRATA_ASSIGN_OR_RETURN(auto placement,
                          cluster::Topology(parts_.registry, parts_.keys).placement(deadline()));
  if (!placement.has_value()) return error_not_found("the registry has no placement");
  return *std::move(placement);
}

// The log also when the pages are not so far.
bool NodeRemover::prepare_leave(const std::string& node, uint64_t generation,
                                uint32_t write_quorum) const {
  const bool log = parts_.log->prepare_leave(node, generation, write_quorum);
  return (parts_.pages == nullptr || parts_.pages->prepare_leave(node, generation, write_quorum)) &&
         log;
}

void NodeRemover::cancel_leave() const {
  parts_.log->cancel_leave();
  if (parts_.pages != nullptr) parts_.pages->cancel_leave();
}

// NM3. Whoever asked has looked, too, and closer; but that was before.
Status NodeRemover::others_are_well(const cluster::StorageGroup& group,
                                    const std::string& leaving) const {
  const std::vector<bool> log = parts_.log->well();
  const std::vector<bool> pages = parts_.pages == nullptr ? log : parts_.pages->well();
  if (log.size() != group.nodes.size() || pages.size() != group.nodes.size())
    return error_peer_down("the log does not have these storage nodes yet");
  for (size_t i = 0; i < log.size(); ++i) {
    if (group.nodes[i] == leaving || (log[i] && pages[i])) continue;
    return error_peer_down("storage node " + group.nodes[i] +
                           (log[i] ? " does not have every page"
                                   : " is away or ill; every other node has to be well"));
  }
  return ok_status();
}

Status NodeRemover::prepare(const cluster::PendingRemoval& pending,
                            const cluster::Placement& placement) {
  const std::string& node = pending.request.node;
  if (placement.generation != pending.request.generation)
    return error_conflict("the storage nodes were changed meanwhile; ask again");
  STRATA_ASSIGN_OR_RETURN(const std::vector<cluster::StorageGroup> next,
                          cluster::with_taken_out(placement, node));
  const cluster::StorageGroup& group = *placement.group_with(node);  // or it could not go
  // What is durable without it only the writer of its group's log knows.
  if (group.id != placement.group_of(parts_.stream).id)
    return error_unsupported("storage node " + node + " is in group " + std::to_string(group.id) +
                             ", which does not keep log stream " +
                             std::to_string(parts_.stream.value));
  const auto left = std::find_if(next.begin(), next.end(),
                                 [&](const auto& other) { return other.id == group.id; });
  const uint64_t until = parts_.registry->now_us() + parts_.prepare_timeout_us;
  for (;;) {
    const bool ready = prepare_leave(node, placement.generation, left->write_quorum);
    Status others = others_are_well(group, node);
    if (ready && others.ok()) return ok_status();
    if (others.ok())
      others = error_peer_down("the other storage nodes do not have everything without it");
    if (withdrawn(pending)) others = error_conflict("the request was withdrawn");
    if (!is_conflict(others) && parts_.registry->now_us() < until && pause(kLookUs)) continue;
    cancel_leave();  // NM2: nothing was asked of the registry
    return others;
  }
}

// Once the registry was asked, only it knows (NM2).
Status NodeRemover::change(const cluster::PendingRemoval& pending,
                           const cluster::Placement& placement) {
  for (;;) {
    const auto changed = removals_.carry_out(pending, placement, parts_.grant(), deadline());
    if (changed.ok()) {
      parts_.follow(*changed);
      return ok_status();
    }
    // Changed by an attempt before and then again, or certainly not: what is there now tells.
    const auto now = is_final(changed.status()) ? read_placement()
                                                : StatusOr<cluster::Placement>(changed.status());
    if (now.ok()) {
      const bool gone = now->group_with(pending.request.node) == nullptr;
      if (gone) {
        parts_.follow(*now);
        return ok_status();
      }
      cancel_leave();
      return error_conflict(
          "the stream's writer, its lease or the placement has changed meanwhile, "
          "or the request was withdrawn (" +
          text(changed.status()) + "); ask again");
    }
    if (!pause(kRegistryPauseUs)) return now.status();
  }
}

}  // namespace strata::clients
