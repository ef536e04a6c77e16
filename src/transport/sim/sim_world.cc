#include "transport/sim/sim_world.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "transport/sim/sim_core.h"

namespace strata::transport {

// --- SimQueue -----------------------------------------------------------------------------------

uint64_t SimQueue::add(SimTime when, SimEvent event) {
  const uint64_t id = next_id_++;
  const SimTime at = std::max(when, now_);
  events_.emplace(std::pair(at, id), std::move(event));
  times_.emplace(id, at);
  return id;
}

void SimQueue::cancel(uint64_t id) {
  const auto time = times_.find(id);
  if (time == times_.end()) return;
  const auto entry = events_.extract({time->second, id});  // destroyed last
  times_.erase(time);
}

std::pair<uint64_t, SimEvent> SimQueue::take() {
  auto entry = events_.extract(events_.begin());
  now_ = entry.key().first;
  times_.erase(entry.key().second);
  return {entry.key().second, std::move(entry.mapped())};
}

void SimQueue::clear() {
  // Destroying a task may add others.
  while (!events_.empty()) std::exchange(events_, {}).clear();
}

// --- SimLife ------------------------------------------------------------------------------------

uint64_t SimLife::now_ns() const { return core_->queue_.now() * 1000; }

void SimLife::post(Task task) { core_->add(0, this, std::move(task)); }

Executor::TimerId SimLife::run_at(uint64_t when_ns, Task task) {
  return core_->add((when_ns + 999) / 1000, this, std::move(task));  // EX2: never early
}

void SimLife::cancel(TimerId id) {
  core_->queue_.cancel(id);
  if (!held_.empty()) held_cancelled_.insert(id);
}

void SimLife::fill(char* out, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) out[i] = static_cast<char>(core_->rng_.next());
}

// --- SimCore: turns -----------------------------------------------------------------------------

SimCore::~SimCore() {
  for (const auto& life : lives_) std::exchange(life->held_, {}).clear();
  queue_.clear();
}

SimTime SimCore::delay() {
  return faults_.delay_us_min + rng_.below(faults_.delay_us_max - faults_.delay_us_min + 1);
}

void SimCore::run(uint64_t id, SimEvent event) {
  events_run_++;
  SimLife* const life = event.life;
  if (life == nullptr) return event.task();
  if (!life->alive_) return;  // SW3
  if (life->paused_until_ > queue_.now() || !life->held_.empty()) {
    life->held_.emplace_back(id, std::move(event));
    return;
  }
  event.task();
}

void SimCore::resume(SimLife* life) {
  while (!life->held_.empty() && life->alive_ && life->paused_until_ <= queue_.now()) {
    auto [id, event] = std::move(life->held_.front());
    life->held_.pop_front();
    if (life->held_cancelled_.erase(id) == 0) event.task();
  }
  if (life->held_.empty()) life->held_cancelled_.clear();
}

// --- SimWorld -----------------------------------------------------------------------------------

SimWorld::SimWorld(uint64_t seed, const SimFaults& faults)
    : core_(std::make_unique<SimCore>(seed, faults)) {}

SimWorld::~SimWorld() = default;

uint32_t SimWorld::add_node() {
  core_->nodes_.emplace_back();
  const auto node = static_cast<uint32_t>(core_->nodes_.size() - 1);
  restart(node);
  return node;
}

World SimWorld::world(uint32_t node) {
  SimLife* const life = core_->nodes_.at(node).life;
  STRATA_ASSERT(life != nullptr);
  return {life, life, life};
}

void SimWorld::kill(uint32_t node, Death death) {
  SimCore::Node& dying = core_->nodes_.at(node);
  STRATA_ASSERT(dying.life != nullptr);
  SimLife* const life = std::exchange(dying.life, nullptr);
  life->alive_ = false;
  std::exchange(life->held_, {}).clear();
  dying.machine_up = death == Death::kProcess;
  const std::map<uint64_t, SimWirePtr> wires = core_->wires_;
  for (const auto& [id, wire] : wires)
    for (int side = 0; side < 2; side++)
      if (wire->ends[side].life == life) core_->end_of_life(wire, side, death);
}

void SimWorld::restart(uint32_t node) {
  STRATA_ASSERT(!alive(node));
  core_->lives_.push_back(std::make_unique<SimLife>(core_.get(), node));
  core_->nodes_[node] = {core_->lives_.back().get(), true};
}

bool SimWorld::alive(uint32_t node) const { return core_->nodes_.at(node).life != nullptr; }

void SimWorld::pause(uint32_t node, uint64_t us) {
  SimLife* const life = core_->nodes_.at(node).life;
  STRATA_ASSERT(life != nullptr);
  life->paused_until_ = std::max(life->paused_until_, now_us() + us);
  core_->add(life->paused_until_, nullptr, [core = core_.get(), life] { core->resume(life); });
}

void SimWorld::set_blocked(uint32_t from, uint32_t to, bool blocked) {
  if (blocked) {
    core_->blocked_.insert({from, to});
  } else {
    core_->blocked_.erase({from, to});
  }
}

void SimWorld::set_extra_delay(uint32_t from, uint32_t to, uint64_t us) {
  core_->extra_delay_[{from, to}] = us;
}

void SimWorld::cut_connections(uint32_t a, uint32_t b) {
  const std::map<uint64_t, SimWirePtr> wires = core_->wires_;
  for (const auto& [id, wire] : wires) {
    const uint32_t client = wire->ends[0].node;
    const uint32_t server = wire->ends[1].node;
    const bool between = (client == a && server == b) || (client == b && server == a);
    if (between) core_->cut(wire, static_cast<int>(core_->rng_.below(2)));
  }
}

void SimWorld::set_faults(const SimFaults& faults) { core_->faults_ = faults; }
uint64_t SimWorld::now_us() const noexcept { return core_->queue_.now(); }
Rng& SimWorld::rng() noexcept { return core_->rng_; }
uint64_t SimWorld::events() const noexcept { return core_->events_run_; }
size_t SimWorld::connections() const noexcept { return core_->wires_.size(); }

bool SimWorld::step() {
  if (core_->queue_.empty()) return false;
  auto [id, event] = core_->queue_.take();
  core_->run(id, std::move(event));
  return true;
}

void SimWorld::run_for(uint64_t us) {
  const SimTime end = now_us() + us;
  while (!core_->queue_.empty() && core_->queue_.next_time() <= end) step();
  core_->queue_.advance(end);
}

bool SimWorld::run_until(absl::FunctionRef<bool()> done, uint64_t us_max) {
  const SimTime end = now_us() + us_max;
  while (!done()) {
    if (core_->queue_.empty() || core_->queue_.next_time() > end) {
      core_->queue_.advance(end);
      return done();
    }
    step();
  }
  return true;
}

void SimWorld::at(uint64_t when_us, Task task) { core_->add(when_us, nullptr, std::move(task)); }

}  // namespace strata::transport
