#include "memnode/fusion/fusion_names.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "proto/methods.h"

namespace strata::memnode {

static_assert(fusion::Names::kNameBytesMax == proto::kNameBytesMax);
static_assert(fusion::Names::kAtOnceMax >= proto::kFusionNamesMax);

FusionNames::FusionNames(const FusionNamesOptions& options, Epoch epoch)
    : options_(options),
      names_(options.names, epoch),
      spaces_(options.spaces, epoch),
      rounds_(options.reuse, epoch) {}

// --- servers ---

// All three know of the same members: what one of them has not released the others have not either.
Status FusionNames::joined(NodeId server, uint64_t life) {
  STRATA_RETURN_IF_ERROR(names_.joined(server, life));
  STRATA_RETURN_IF_ERROR(spaces_.joined(server, life));
  STRATA_RETURN_IF_ERROR(rounds_.joined(server, life));
  News& news = news_[server.value];
  if (news.life == life) return ok_status();
  news = News();
  news.life = life;
  return ok_status();
}

void FusionNames::left(NodeId server, uint64_t life) {
  names_.left(server, life);
  spaces_.left(server, life);
  rounds_.left(server, life);
  if (const News* const news = news_of(server, life); news != nullptr) news_.erase(server.value);
  collect();
}

void FusionNames::fence(NodeId server) {
  names_.fence(server);
  spaces_.fence(server);
  rounds_.fence(server);
  news_.erase(server.value);
  collect();
}

void FusionNames::release_fenced(NodeId server) {
  names_.release_fenced(server);
  spaces_.release_fenced(server);
  rounds_.release_fenced(server);
  collect();
}

void FusionNames::resumed(NodeId server, uint64_t number, uint64_t round) {
  names_.heard_of(number);
  rounds_.resumed(server, round);
}

// --- what servers say ---

Status FusionNames::ask(const proto::AskNamesRequest& request, uint64_t now_us) {
  const Status status = names_.ask(request.caller, request.asks, now_us);
  collect();
  return status;
}

Status FusionNames::report(const proto::ReportNamesRequest& request, uint64_t now_us) {
  const Status status = names_.report(request.caller, request.reports, now_us);
  collect();
  return status;
}

Status FusionNames::adopted(const proto::NameCaller& caller, NodeId place, uint64_t now_us) {
  const Status adopts = names_.adopt(caller, place);
  if (is_not_found(adopts)) return ok_status();
  STRATA_RETURN_IF_ERROR(adopts);
  const Status status = names_.adoption_ended(caller, place, now_us);
  collect();
  return status;
}

StatusOr<bool> FusionNames::dropped(const proto::SpaceDroppedRequest& request, uint64_t now_us) {
  const StatusOr<bool> left = spaces_.dropped(request.caller, request.space, now_us);
  collect();
  return left;
}

Status FusionNames::has_left(const proto::LeftSpacesRequest& request) {
  const Status status = spaces_.has_left(request.caller, request.spaces);
  collect();
  return status;
}

StatusOr<uint64_t> FusionNames::begin_round(const proto::NameCaller& caller, uint64_t now_us) {
  const StatusOr<uint64_t> round = rounds_.begin(caller, now_us);
  collect();
  return round;
}

StatusOr<bool> FusionNames::round_ended(const proto::ReuseRoundRequest& request) const {
  return rounds_.ended(request.caller, request.round);
}

Status FusionNames::report_round(const proto::ReuseRoundRequest& request) {
  return rounds_.report(request.caller, request.round);
}

void FusionNames::tick(uint64_t now_us) {
  names_.tick(now_us);
  spaces_.tick(now_us);
  rounds_.tick(now_us);
  collect();
}

// --- what there is to be said ---

FusionNames::News* FusionNames::news_of(NodeId server, uint64_t life) {
  const auto found = news_.find(server.value);
  return found == news_.end() || found->second.life != life ? nullptr : &found->second;
}

namespace {

// FV10. False: it is thrown away.
template <class Map, class Message>
bool put(Map* map, size_t said_max, uint64_t number, Message message) {
  if (map->size() >= said_max && !map->contains(number)) return false;
  map->insert_or_assign(number, std::move(message));
  return true;
}

bool put(std::set<SpaceId>* set, size_t said_max, SpaceId space) {
  if (set->size() >= said_max && !set->contains(space)) return false;
  set->insert(space);
  return true;
}

template <class Map, class Message>
void take_some(Map* map, size_t max, std::vector<Message>* to) {
  const size_t count = std::min(map->size(), max);
  to->reserve(count);
  for (size_t i = 0; i < count; ++i) {
    auto node = map->extract(map->begin());
    to->push_back(std::move(node.mapped()));
  }
}

template <class Message>
void take_some(std::set<SpaceId>* set, size_t max, std::vector<Message>* to) {
  const size_t count = std::min(set->size(), max);
  for (size_t i = 0; i < count; ++i) to->push_back({set->extract(set->begin()).value()});
}

}  // namespace

void FusionNames::collect() {
  const size_t max = options_.said_max;
  for (fusion::Names::Outgoing& out : names_.take_outgoing()) {
    News* const news = news_of(out.server, out.life);
    if (news == nullptr) continue;
    if (auto* const grant = std::get_if<proto::NameGrant>(&out.message)) {
      const uint64_t number = grant->number;
      if (!put(&news->grants, max, number, std::move(*grant))) ++counters_.untold;
    } else {
      auto& give_up = std::get<proto::NameGiveUp>(out.message);
      const uint64_t number = give_up.number;
      if (!put(&news->give_ups, max, number, std::move(give_up))) ++counters_.untold;
    }
  }
  for (const fusion::DroppedSpaces::Outgoing& out : spaces_.take_outgoing()) {
    News* const news = news_of(out.server, out.life);
    if (news == nullptr) continue;
    const auto* const leave = std::get_if<proto::SpaceLeave>(&out.message);
    const bool is_kept =
        leave != nullptr ? put(&news->leave, max, leave->space)
                         : put(&news->left, max, std::get<proto::SpaceIsLeft>(out.message).space);
    if (!is_kept) ++counters_.untold;
  }
  for (const fusion::ReuseRounds::Outgoing& out : rounds_.take_outgoing()) {
    News* const news = news_of(out.server, out.life);
    if (news != nullptr) news->round = std::max(news->round, out.message.round);
  }
}

bool FusionNames::has_news(NodeId server) const {
  const auto found = news_.find(server.value);
  return found != news_.end() && !found->second.empty();
}

proto::NameNews FusionNames::take_news(NodeId server) {
  proto::NameNews out;
  const auto found = news_.find(server.value);
  if (found == news_.end()) return out;
  News& news = found->second;
  take_some(&news.grants, proto::kFusionNamesMax, &out.grants);
  take_some(&news.give_ups, proto::kFusionNamesMax, &out.give_ups);
  take_some(&news.leave, proto::kFusionSpacesMax, &out.leave);
  take_some(&news.left, proto::kFusionSpacesMax, &out.left);
  out.reuse_round = std::exchange(news.round, 0);
  counters_.told += out.grants.size() + out.give_ups.size() + out.leave.size() + out.left.size();
  return out;
}

}  // namespace strata::memnode
