#include "storenode/replay/smart_replay.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/diag.h"
#include "redo/redo.h"

namespace strata::storenode {
namespace {

constexpr size_t kStoreAtOnce = 64;  // pages
constexpr size_t kWarmAhead = 32;    // sections
constexpr uint32_t kPlansMax = 8;    // more collections than that do not come in between

// Where to begin so that list[to] can be made: it restarts the chain, or the one before is stored.
ptrdiff_t begin_for(VersionList list, ptrdiff_t to) noexcept {
  STRATA_ASSERT(to >= 0 && static_cast<size_t>(to) < list.size());
  while (to > 0 && !list[to].is(kRestartsChain) && !list[to - 1].is(kMaterialized)) --to;
  return to;
}

Llsn base_of(VersionList list, ptrdiff_t begin) noexcept {
  return begin == 0 || list[begin].is(kRestartsChain) ? Llsn{} : list[begin - 1].llsn;
}

void warm_sections(const ReplayParts& parts, VersionList steps) {
  std::array<LogCache::Piece, kWarmAhead> pieces;
  size_t count = 0;
  for (const Version& version : steps.first(std::min(kWarmAhead, steps.size())))
    pieces[count++] = {version.stream, Lsn{version.lsn.value + version.section_offset},
                       version.section_bytes};
  parts.log_cache->warm({pieces.data(), count});
}

void leave(const Version& version, std::vector<PendingPages::Section>* left) {
  for (PendingPages::Section& section : *left) {
    if (section.stream != version.stream) continue;
    section.lsn = std::min(section.lsn, version.lsn);
    return;
  }
  left->push_back({version.stream, version.lsn});
}

}  // namespace

Status SmartReplay::add_stream(StreamId stream, LogView*, StreamMark from) {
  pending_.add_stream(stream, from);
  return ok_status();
}

void SmartReplay::scanned(StreamId stream, StreamMark from, StreamMark to,
                          const std::vector<PageId>& pages) {
  pending_.add(stream, from, to, pages);
}

StreamMark SmartReplay::replayed_to(StreamId stream) const { return pending_.oldest(stream); }

StatusOr<StreamMarks> SmartReplay::prepare_checkpoint() {
  StreamMarks marks;
  for (const Streams::Stream& stream : parts_.streams->all())
    marks.emplace_back(stream.id, pending_.oldest(stream.id));
  return marks;
}

// --- plans ---

StatusOr<SmartReplay::Plan> SmartReplay::plan_request(PageId page, Llsn target) {
  Plan plan;
  STRATA_RETURN_IF_ERROR(parts_.map->inspect(page, [&](VersionList list) {
    const ptrdiff_t at = newest_at(list, target);
    if (at < 0 || list[at].llsn != target || list[at].is(kMaterialized)) return;
    const ptrdiff_t begin = begin_for(list, at);
    plan.base = base_of(list, begin);
    plan.steps.assign(list.begin() + begin, list.begin() + at + 1);
    if (keep_ == Keep::kNeeded) plan.store_from = target;
  }));
  return plan;
}

StatusOr<SmartReplay::Plan> SmartReplay::plan_worker(PageId page, Above above) {
  Plan plan;
  STRATA_RETURN_IF_ERROR(parts_.map->inspect(page, [&](VersionList list) {
    const auto end = static_cast<ptrdiff_t>(list.size());
    const ptrdiff_t needed =
        keep_ == Keep::kNeeded ? newest_at(list, parts_.map->horizon()) : ptrdiff_t{-1};
    ptrdiff_t at = std::max<ptrdiff_t>(0, needed);
    if (at < end) plan.store_from = list[at].llsn;
    while (at < end && list[at].is(kMaterialized)) ++at;
    if (at == end) return;
    const ptrdiff_t to = at == needed && above == Above::kLater ? needed + 1 : end;
    const ptrdiff_t begin = begin_for(list, at);
    plan.base = base_of(list, begin);
    plan.steps.assign(list.begin() + begin, list.begin() + to);
    plan.skipped = static_cast<uint64_t>(
        std::count_if(list.begin(), list.begin() + begin,
                      [](const Version& version) { return !version.is(kMaterialized); }));
    for (const Version& version : list.subspan(to))
      if (!version.is(kMaterialized)) leave(version, &plan.left);
  }));
  return plan;
}

// --- making versions ---

// Makes one version after the other. A page that is to be stored is not touched any more: the next
// version is made in a copy.
class SmartReplay::Maker {
 public:
  Maker(SmartReplay* replay, PageId page, const Plan& plan)
      : parts_(replay->parts_), page_(page), plan_(plan), llsn_(plan.base) {}

  // kNotFound: a stored version has been collected meanwhile. kDataLoss, kUnavailable (a gap that
  // another stream may fill): this version cannot be made.
  Status make(const Version& version);
  // A version that is stored: the next one is made from it.
  void pass(const Version& version) {
    shared_ = nullptr;
    own_ = nullptr;
    llsn_ = version.llsn;
  }
  // Sealed; stays as it is.
  PageRef keep() {
    if (shared_ == nullptr) {
      STRATA_ASSERT(own_ != nullptr);
      seal_page(own_->bytes);
      shared_ = std::move(own_);
    }
    return shared_;
  }

 private:
  Status prepare(const Version& version);
  const ReplayParts& parts_;
  const PageId page_;
  const Plan& plan_;
  Llsn llsn_;                        // of the current page; zero: there is none
  PageRef shared_;                   // the current page, if others see it
  std::shared_ptr<PageBuffer> own_;  // ... if not
  std::string section_;
};

// The page the version is made from, in a buffer of our own.
Status SmartReplay::Maker::prepare(const Version& version) {
  if (!version.is(kRestartsChain) && llsn_.is_zero() && version.prev_llsn.is_zero())
    return error_corruption("nothing in the log begins the page");
  if (!version.is(kRestartsChain) && llsn_ != version.prev_llsn) {
    const std::string text =
        "the page misses an earlier change, of llsn " + std::to_string(version.prev_llsn.value);
    return parts_.waits->may_come(version.prev_llsn) ? error_peer_down(text)
                                                     : error_corruption(text);
  }
  if (version.is(kRestartsChain)) {
    if (own_ == nullptr) own_ = std::make_shared<PageBuffer>();
    std::memset(own_->bytes, 0, kPageBytes);
    return ok_status();
  }
  if (own_ != nullptr) return ok_status();
  if (shared_ == nullptr) {
    STRATA_ASSIGN_OR_RETURN(shared_, read_base(parts_, page_, llsn_));
  }
  own_ = std::make_shared<PageBuffer>();
  std::memcpy(own_->bytes, shared_->bytes, kPageBytes);
  return ok_status();
}

Status SmartReplay::Maker::make(const Version& version) {
  Status status = prepare(version);
  if (is_not_found(status)) return status;
  if (status.ok()) status = read_section(parts_, version, &section_);
  if (status.ok()) {
    STRATA_ASSIGN_OR_RETURN(const redo::SectionView section, redo::parse_section(section_));
    STRATA_RETURN_IF_ERROR(apply_to(own_.get(), page_, version, section));
    shared_ = nullptr;
    llsn_ = version.llsn;
    return ok_status();
  }
  const std::string text = name_of(page_) + " at llsn " + std::to_string(version.llsn.value) +
                           " (" + name_of(version.stream, version.lsn) +
                           "): " + std::string(status.message());
  // The log is gone where it is still needed: as bad as damage.
  return is_out_of_range(status) ? error_corruption(text) : with_message(status, text);
}

// With `stop_at_damage` the first damage ends it; otherwise the versions behind it are passed over
// until one of them needs none before it.
Status SmartReplay::run(PageId page, const Plan& plan, bool stop_at_damage, Result* result) {
  Maker maker(this, page, plan);
  bool broken = false;
  for (size_t at = 0; at < plan.steps.size(); ++at) {
    const Version& version = plan.steps[at];
    if (at % kWarmAhead == 0) warm_sections(parts_, VersionList(plan.steps).subspan(at));
    if (version.is(kMaterialized)) {
      maker.pass(version);
      broken = false;
      continue;
    }
    if (broken && !version.is(kRestartsChain)) {
      result->damaged = version.llsn;
      continue;
    }
    const Status status = maker.make(version);
    if (is_corruption(status) || is_peer_down(status)) {
      if (result->damage.ok()) result->damage = status;
      result->damaged = version.llsn;
      if (stop_at_damage) return ok_status();
      broken = true;
      continue;
    }
    STRATA_RETURN_IF_ERROR(status);
    broken = false;
    ++result->sections;
    result->bytes += version.section_bytes;
    const bool last = version.llsn == plan.steps.back().llsn;
    if (!last && version.llsn < plan.store_from) continue;
    STRATA_ASSERT(result->made.empty() || result->made.back().llsn < version.llsn);
    result->newest = maker.keep();
    result->newest_llsn = version.llsn;
    result->made.push_back({version.llsn, result->newest});
    if (result->made.size() >= kStoreAtOnce) STRATA_RETURN_IF_ERROR(store(page, result));
  }
  return ok_status();
}

Status SmartReplay::store(PageId page, Result* result) {
  for (const VersionMap::MadeVersion& one : result->made)
    parts_.store->remember(page, one.llsn, one.page);
  const auto trim =
      keep_ == Keep::kNeeded ? VersionMap::Trim::kNow : VersionMap::Trim::kWhenWorthwhile;
  STRATA_RETURN_IF_ERROR(parts_.map->store(page, result->made, trim));
  parts_.counters->pages_made.fetch_add(result->made.size(), std::memory_order_relaxed);
  result->made.clear();
  return ok_status();
}

void SmartReplay::count(const Result& result) {
  parts_.counters->sections_applied.fetch_add(result.sections, std::memory_order_relaxed);
  parts_.counters->section_bytes.fetch_add(result.bytes, std::memory_order_relaxed);
}

// --- workers ---

// False: a stored version it begins with has been collected meanwhile.
StatusOr<bool> SmartReplay::follow(PageId page, const Plan& plan, Result* result) {
  *result = Result{};
  const Status status = run(page, plan, /*stop_at_damage=*/false, result);
  if (is_not_found(status)) return false;
  STRATA_RETURN_IF_ERROR(status);
  parts_.counters->sections_skipped.fetch_add(plan.skipped, std::memory_order_relaxed);
  count(*result);
  STRATA_RETURN_IF_ERROR(store(page, result));
  result->left = plan.left;
  // The marks pass what cannot be made, too (VM7).
  if (!plan.steps.empty()) {
    STRATA_RETURN_IF_ERROR(parts_.map->settle(page, plan.steps.back().llsn));
  }
  return true;
}

// The page is ours (SMT1). Behind damage nothing is left for later: what is at the horizon may
// never be stored.
Status SmartReplay::replay_page(PageId page, Result* result) {
  Above above = Above::kLater;
  for (uint32_t tried = 0; tried < kPlansMax; ++tried) {
    STRATA_ASSIGN_OR_RETURN(const Plan plan, plan_worker(page, above));
    STRATA_ASSIGN_OR_RETURN(const bool followed, follow(page, plan, result));
    if (followed && (result->damage.ok() || result->left.empty())) return ok_status();
    if (followed) above = Above::kNow;
  }
  return error_peer_down(name_of(page) + ": its stored versions change all the time");
}

StatusOr<bool> SmartReplay::step() {
  const std::optional<PageId> page =
      pending_.take([this](PageId id) { return parts_.waits->try_begin(id); });
  if (!page.has_value()) return false;
  Result result;
  const Status status = replay_page(*page, &result);
  parts_.counters->background.fetch_add(1, std::memory_order_relaxed);
  if (!status.ok()) {
    pending_.put_off(*page, /*for_scan=*/false);
  } else if (is_peer_down(result.damage)) {
    pending_.put_off(*page, /*for_scan=*/true);
  } else {
    pending_.done(*page, result.left);
  }
  parts_.waits->end(*page);
  if (is_corruption(result.damage)) {
    parts_.counters->pages_broken.fetch_add(1, std::memory_order_relaxed);
    diag(Severity::kError, "replay: %s", std::string(result.damage.message()).c_str());
    if (parts_.damaged) parts_.damaged(*page, result.damaged);
  }
  STRATA_RETURN_IF_ERROR(status);
  return true;
}

// --- requests ---

// The page is ours. What was made is stored once the request is answered.
Verdict SmartReplay::replay_for(Ticket* ticket, const Version& version) {
  const PageId page = ticket->request.page;
  auto result = std::make_shared<Result>();
  StatusOr<Plan> plan = plan_request(page, version.llsn);
  Status status = plan.status();
  if (status.ok() && !plan->steps.empty())
    status = run(page, *plan, /*stop_at_damage=*/true, result.get());
  const auto finish = [this, page, result] {
    if (!result->made.empty()) (void)store(page, result.get());  // else a worker will do it
    parts_.waits->end(page);
    pending_.wake();
  };
  count(*result);
  parts_.counters->on_demand_sections.fetch_add(result->sections, std::memory_order_relaxed);
  parts_.counters->on_demand_bytes.fetch_add(result->bytes, std::memory_order_relaxed);
  ticket->waited_bytes += result->bytes;
  const bool made = status.ok() && result->newest != nullptr && result->newest_llsn == version.llsn;
  if (made) {
    parts_.counters->on_demand.fetch_add(1, std::memory_order_relaxed);
    ticket->after = finish;
    return PageAnswer{result->newest, version.llsn};
  }
  finish();
  if (!status.ok() && !is_not_found(status)) return status;
  if (is_peer_down(result->damage))
    return WaitCondition{WaitCondition::Kind::kMoreScanned, {}, false};
  if (!result->damage.ok()) return result->damage;
  return ok_status();  // stored or collected meanwhile: look again
}

std::optional<PageAnswer> SmartReplay::page_at_hand(const GetPageRequest& request) {
  if (!parts_.waits->is_scanned_at_hand(request)) return std::nullopt;
  return stored_at_hand(parts_, request);
}

Verdict SmartReplay::attempt(Ticket* ticket) {
  const GetPageRequest& request = ticket->request;
  if (!parts_.waits->is_scanned(request))
    return WaitCondition{WaitCondition::Kind::kScanned, {}, false};
  for (;;) {
    const StatusOr<Version> version = find_version(parts_, request);
    if (!version.ok()) return version.status();
    if (version->is(kMaterialized)) {
      StatusOr<std::optional<PageAnswer>> answer = read_stored(parts_, request.page, *version);
      if (!answer.ok()) return answer.status();
      if (answer->has_value()) return **std::move(answer);
      continue;
    }
    if (!parts_.waits->try_begin(request.page)) {
      ticket->shared = true;
      return WaitCondition{WaitCondition::Kind::kPage, {}, false};
    }
    Verdict verdict = replay_for(ticket, *version);
    const Status* const status = std::get_if<Status>(&verdict);
    if (status == nullptr || !status->ok()) return verdict;
  }
}

}  // namespace strata::storenode
