#include "mariadb/cluster.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>

#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/diag.h"
#include "base/profiles.h"
#include "clients/compute/compute_node.h"
#include "clients/compute/fusion_node.h"
#include "clients/compute/place_adopter.h"
#include "clients/compute/stand_by.h"
#include "clients/compute/start_again.h"
#include "engine/kernel_seams.h"
#include "engine/recover_only.h"
#include "io/token_file.h"
#include "mariadb/agent.h"
#include "mariadb/settings.h"
#include "registry/etcd/etcd.h"

namespace strata::glue {

namespace {

// One of the two: the first where one server writes, the other where several do.
std::unique_ptr<clients::ComputeNode> single;
std::unique_ptr<clients::PlaceAdopter> adopter;  // of one of several, which tells it who is there
std::unique_ptr<clients::FusionNode> one_of_several;
clients::ComputeNode* node = nullptr;  // this server's part in the cluster, whichever it is

class LeaseGuard final : public engine::AnswerGuard {
 public:
  [[nodiscard]] bool may_answer() const noexcept override {
    return one_of_several != nullptr ? one_of_several->may_answer() : single->may_answer();
  }
  [[nodiscard]] Status why_not() const override {
    const Status why =
        one_of_several != nullptr ? one_of_several->why_silent() : single->why_silent();
    return why.ok() ? AnswerGuard::why_not() : why;  // it has got a lease meanwhile
  }
};
const LeaseGuard lease_guard;

std::atomic<bool> has_started{false};
constexpr uint64_t kShutdownPatienceUs = 10'000'000;
constexpr uint64_t kAdoptersPoolBytes = uint64_t{32} << 20;

// Whether a log that no write quorum takes is to be given up. While the server runs it is not,
// since its storage nodes come back sooner or later; a start has its timeout, and so has a
// shutdown, for which the connections that wait have to end.
bool nobody_waits(uint64_t starts_until_us) {
  static std::atomic<uint64_t> stops_until_us{0};
  const uint64_t now_us = monotonic_us();
  if (!has_started) return now_us >= starts_until_us;
  if (!abort_loop) return false;
  uint64_t none = 0;
  stops_until_us.compare_exchange_strong(none, now_us + kShutdownPatienceUs);
  return now_us >= stops_until_us;
}

std::string text_of(const char* setting) { return setting == nullptr ? "" : setting; }

std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Status check_settings(const std::string& profile) {
  if (find_cluster_profile(profile) == nullptr)
    return error_invalid_argument("strata_profile '" + profile +
                                  "' is not known to this build; there is " + names_of_profiles());
  if (text_of(setting_registry).empty())
    return error_invalid_argument("profile '" + profile +
                                  "' needs strata_registry: the endpoints of the cluster's etcd");
  if (text_of(setting_secret_file).empty())
    return error_invalid_argument("profile '" + profile +
                                  "' needs strata_secret_file: the file with the cluster's secret");
  return ok_status();
}

// A file that a setting names.
std::string path_of(const char* setting) {
  std::string path = text_of(setting);
  return path.empty() || path.front() == '/' ? path : mysql_real_data_home + path;
}

StatusOr<clients::RemoteMemoryOptions> memory_options() {
  clients::RemoteMemoryOptions memory;
  memory.nodes =
      absl::StrSplit(text_of(setting_lego_memnode), absl::ByAnyChar(", "), absl::SkipEmpty());
  if (std::set<std::string>(memory.nodes.begin(), memory.nodes.end()).size() != memory.nodes.size())
    return error_invalid_argument("strata_lego_memnode names a memory node twice");
  memory.nodes_max = setting_lego_memnodes_max;
  memory.backup = setting_lego_backup != 0;
  memory.pool_bytes = setting_lego_pool_bytes;
  memory.free_slots = setting_lego_free_slots;
  memory.timeout_us = uint64_t{setting_lego_timeout_s} * 1'000'000;
  memory.remote_addresses = setting_lego_remote_addresses != 0;
  memory.pull = setting_lego_pull != 0;
  if (const std::string path = path_of(setting_lego_token_file); !path.empty()) {
    STRATA_ASSIGN_OR_RETURN(memory.token, read_token(path));
  }
  return memory;
}

StatusOr<clients::ComputeOptions> compute_options(const engine::KernelOptions& kernel_options) {
  clients::ComputeOptions options;
  options.cluster = text_of(setting_cluster);
  options.name = text_of(setting_node_name);
  options.profile = kernel_options.profile;
  options.data_directory = kernel_options.directory;
  options.lease_seconds = setting_lease_seconds;
  options.replay_backlog_max = setting_replay_backlog_size;
  options.page_images = setting_full_page_images != 0;
  options.given_up_max = setting_exact_page_versions;
  STRATA_ASSIGN_OR_RETURN(options.memory, memory_options());
  options.start_timeout_us = uint64_t{setting_start_timeout} * 1'000'000;
  options.give_up_log = [starts_until_us = monotonic_us() + options.start_timeout_us] {
    return nobody_waits(starts_until_us);
  };
  STRATA_ASSIGN_OR_RETURN(const transport::LinkSpeed speed,
                          transport::link_speed(text_of(setting_link)));
  if (speed.round_trip_ns != 0 || speed.bytes_per_second != 0)
    options.link_model = std::make_shared<transport::LinkModel>(speed);
  return options;
}

StatusOr<std::unique_ptr<registry::Registry>> connect_registry() {
  registry::EtcdOptions etcd;
  etcd.endpoints = parts_of(text_of(setting_registry));
  return registry::make_etcd_registry(etcd);
}

// The server's thread for signals does not run yet while plugins start: they are blocked and wait.
bool told_to_stop() {
  sigset_t waiting;
  return sigpending(&waiting) == 0 &&
         (sigismember(&waiting, SIGTERM) == 1 || sigismember(&waiting, SIGINT) == 1);
}

// Of a server that stands by: until it may have the database. What can be wrong is found before.
StatusOr<clients::StandBy::Turn> wait_for_turn(const engine::KernelOptions& kernel_options) {
  STRATA_RETURN_IF_ERROR(check_settings(kernel_options.profile));
  STRATA_RETURN_IF_ERROR(compute_options(kernel_options).status());
  STRATA_RETURN_IF_ERROR(transport::load_secret(path_of(setting_secret_file)).status());
  STRATA_ASSIGN_OR_RETURN(const cluster::ClusterKeys keys,
                          cluster::ClusterKeys::of(text_of(setting_cluster)));
  STRATA_ASSIGN_OR_RETURN(const auto registry, connect_registry());
  clients::StandByOptions options;
  options.directory = kernel_options.directory;
  options.neighbours = parts_of(text_of(setting_stand_by_neighbours));
  options.lease_seconds = setting_lease_seconds;
  options.stop = told_to_stop;
  return clients::StandBy(registry.get(), keys, options).wait();
}

// `turn`: of a server that stands by; null: it does not.
StatusOr<std::unique_ptr<clients::ComputeNode>> join(const engine::KernelOptions& kernel_options,
                                                     const clients::StandBy::Turn* turn) {
  STRATA_RETURN_IF_ERROR(check_settings(kernel_options.profile));
  STRATA_ASSIGN_OR_RETURN(clients::ComputeOptions options, compute_options(kernel_options));
  if (turn != nullptr) {
    options.stands_by = true;
    options.in_place_of = turn->in_place_of;
  }
  STRATA_ASSIGN_OR_RETURN(const transport::Secret secret,
                          transport::load_secret(path_of(setting_secret_file)));
  STRATA_ASSIGN_OR_RETURN(auto registry, connect_registry());
  return clients::ComputeNode::join(std::move(registry), secret, options);
}

class PlaceGuard final : public engine::AnswerGuard {
 public:
  explicit PlaceGuard(const clients::FusionNode* place) : place_(place) {}
  [[nodiscard]] bool may_answer() const noexcept override { return place_->may_answer(); }
  [[nodiscard]] Status why_not() const override {
    const Status why = place_->why_silent();
    return why.ok() ? AnswerGuard::why_not() : why;
  }

 private:
  const clients::FusionNode* const place_;
};

// What a server that was killed has left. Nobody serves from this kernel, and its folder holds
// nothing that is needed afterwards, or is left from an earlier time.
StatusOr<std::string> recover_place(clients::FusionNode* place, engine::KernelOptions options,
                                    StopFlag* stop) {
  options.node = place->number().value;
  options.directory += "/adopts-" + std::to_string(options.node);
  options.buffer_pool_bytes = std::min<uint64_t>(options.buffer_pool_bytes, kAdoptersPoolBytes);
  options.wait_listener = nullptr;  // no session of the server's waits in it
  const PlaceGuard guard(place);
  engine::KernelSeams seams;
  place->fill(&seams);
  seams.answers = &guard;
  std::error_code ignored;  // the next one removes it
  std::filesystem::remove_all(options.directory, ignored);
  const auto what = engine::recover_only(options, seams, stop);
  std::filesystem::remove_all(options.directory, ignored);
  if (!what.ok()) return what.status();
  return engine::text_of(*what);
}

std::unique_ptr<clients::PlaceAdopter> make_adopter(const transport::Secret& secret,
                                                    const clients::FusionNodeOptions& node_options,
                                                    const engine::KernelOptions& kernel_options) {
  clients::PlaceAdopterOptions options;
  options.node = node_options;
  options.connect = connect_registry;
  options.recover = [kernel_options](clients::FusionNode* place, StopFlag* stop) {
    return recover_place(place, kernel_options, stop);
  };
  return std::make_unique<clients::PlaceAdopter>(secret, std::move(options));
}

// Its number is the kernel's.
StatusOr<std::unique_ptr<engine::Kernel>> open_among_several(engine::KernelOptions options) {
  STRATA_RETURN_IF_ERROR(check_settings(options.profile));
  clients::FusionNodeOptions of;
  STRATA_ASSIGN_OR_RETURN(of.compute, compute_options(options));
  of.member.token = of.compute.memory.token;
  STRATA_ASSIGN_OR_RETURN(const transport::Secret secret,
                          transport::load_secret(path_of(setting_secret_file)));
  STRATA_ASSIGN_OR_RETURN(auto registry, connect_registry());
  adopter = make_adopter(secret, of, options);
  of.member.members = [](const auto& servers) { adopter->heard(servers); };
  STRATA_ASSIGN_OR_RETURN(one_of_several,
                          clients::FusionNode::join(std::move(registry), secret, of));
  node = one_of_several->compute();
  options.node = one_of_several->number().value;
  engine::KernelSeams seams;
  one_of_several->fill(&seams);
  seams.answers = &lease_guard;
  // What others have left may lock pages that this start needs (ADP7).
  adopter->start(one_of_several->number(), node->holder());
  seams.above = table_users();
  auto opened = engine::open_with_seams(options, seams);
  if (!opened.ok()) leave_cluster(false);
  return opened;
}

bool is_one_of_several(const std::string& profile) {
  const Profile* found = find_cluster_profile(profile);
  return found != nullptr && found->writers == Writers::kSeveral;
}

StatusOr<std::unique_ptr<engine::Kernel>> open_in_cluster(const engine::KernelOptions& options,
                                                          const clients::StandBy::Turn* turn) {
  if (is_one_of_several(options.profile)) return open_among_several(options);
  STRATA_ASSIGN_OR_RETURN(single, join(options, turn));
  node = single.get();
  engine::KernelSeams seams;
  seams.page_source = node->pages();
  seams.log_sink = node->log();
  seams.control = node->control();
  seams.answers = &lease_guard;
  auto opened = engine::open_with_seams(options, seams);
  if (!opened.ok()) leave_cluster(false);
  return opened;
}

StatusOr<std::unique_ptr<engine::Kernel>> open_now(const engine::KernelOptions& options,
                                                   const clients::StandBy::Turn* turn) {
  return clients::start_again(uint64_t{setting_start_timeout} * 1'000'000,
                              [&options, turn] { return open_in_cluster(options, turn); });
}

// Of several that stand by one gets the database, and the others go on waiting.
StatusOr<std::unique_ptr<engine::Kernel>> open_when_it_is_our_turn(
    const engine::KernelOptions& options) {
  for (;;) {
    STRATA_ASSIGN_OR_RETURN(const clients::StandBy::Turn turn, wait_for_turn(options));
    const uint64_t began_us = monotonic_us();
    diag(Severity::kInfo, "stand-by: takes the database over from %s: %s",
         turn.holder.empty() ? "nobody" : turn.holder.c_str(), turn.why.c_str());
    auto opened = open_now(options, &turn);
    if (opened.ok())
      diag(Severity::kInfo, "stand-by: has the database after %llu ms",
           static_cast<unsigned long long>((monotonic_us() - began_us) / 1000));
    if (opened.ok() || !is_in_use(opened.status())) return opened;
    diag(Severity::kInfo, "stand-by: %s", cause_of(opened.status()).c_str());
  }
}

}  // namespace

StatusOr<std::unique_ptr<engine::Kernel>> open_kernel(const engine::KernelOptions& options) {
  const Profile* profile = find_profile(options.profile);
  if (profile != nullptr && !profile->is_of_cluster()) return engine::Kernel::open(options);
  if (setting_stand_by != 0 && is_one_of_several(options.profile))
    return error_invalid_argument("under profile '" + options.profile +
                                  "' every server writes, and none stands by: set strata_stand_by "
                                  "to OFF");
  auto opened =
      setting_stand_by != 0 ? open_when_it_is_our_turn(options) : open_now(options, nullptr);
  has_started = opened.ok();
  return opened;
}

void stop_adopting() {
  if (adopter != nullptr) adopter->stop();
}

void leave_cluster(bool in_order) {
  stop_adopting();
  if (node == nullptr) return;
  // What one of several has changed may be in its memory only: others learn it from its log then,
  // when it is started again.
  const bool says_so = one_of_several == nullptr || in_order;
  const Status left = !says_so                    ? ok_status()
                      : one_of_several != nullptr ? one_of_several->leave()
                                                  : node->leave();
  if (!left.ok())
    diag(Severity::kWarning,
         "the registry could not be told that this node leaves (%.*s): others can have its place "
         "when its lease ends",
         static_cast<int>(left.message().size()), left.message().data());
  node = nullptr;
  single.reset();
  one_of_several.reset();
  adopter.reset();  // heard until here
}

Status may_answer() {
  return node == nullptr || lease_guard.may_answer() ? ok_status() : lease_guard.why_not();
}

Status cluster_trouble() {
  if (one_of_several != nullptr) return one_of_several->trouble();
  return node == nullptr ? ok_status() : node->trouble();
}

NodeId place_among_several() {
  return one_of_several == nullptr ? NodeId{} : one_of_several->number();
}

uint64_t cluster_identity() { return node == nullptr ? 0 : node->identity(); }

namespace {

void add_memory(const clients::RemoteMemory* memory, std::vector<engine::Kernel::Counter>* to) {
  if (memory == nullptr) return;
  const clients::PoolSet& pools = *memory->pages();
  // Of all memory nodes together.
  const auto sum = [&](auto of) {
    uint64_t sum = 0;
    for (size_t i = 0; i < pools.size(); ++i) sum += uint64_t{of(pools.pool(i))};
    return sum;
  };
  using Pool = clients::MemoryPageSource;
  using Counter = std::atomic<uint64_t> Pool::Counters::*;
  const auto count = [&](Counter counter) {
    return sum([counter](const Pool& pool) { return (pool.counters().*counter).load(); });
  };
  using Counters = Pool::Counters;
  to->insert(to->end(),
             {{"lego_memory_nodes", pools.size()},
              {"lego_backups", memory->backups().whole},
              {"lego_switches", memory->backups().switches},
              {"lego_attached", sum([](const Pool& pool) { return pool.attachment().attached(); })},
              {"lego_pool_slots", sum([](const Pool& pool) { return pool.directory().slots(); })},
              {"lego_pool_used", sum([](const Pool& pool) { return pool.directory().size(); })},
              {"lego_pool_dirty", sum([](const Pool& pool) { return pool.directory().dirty(); })},
              {"lego_remote_hits", count(&Counters::from_pool)},
              {"lego_storage_reads", count(&Counters::from_storage)},
              {"lego_get_ns", count(&Counters::get_ns)},
              {"lego_mismatches", count(&Counters::mismatches)},
              {"lego_lookups", count(&Counters::lookups)},
              {"lego_pages_flushed", count(&Counters::put)},
              {"lego_pages_registered", count(&Counters::registered)},
              {"lego_pages_dropped", count(&Counters::dropped)},
              {"lego_not_staged", count(&Counters::not_staged)},
              {"lego_written_directly", count(&Counters::written_directly)},
              {"lego_grants", count(&Counters::grants)},
              {"lego_pages_to_storage", count(&Counters::flushed)},
              {"lego_memory_checkpoints", count(&Counters::memory_checkpoints)},
              {"lego_storage_checkpoints", count(&Counters::storage_checkpoints)},
              {"lego_damaged_clean", count(&Counters::damaged_clean)},
              {"lego_damaged_dirty", count(&Counters::damaged_dirty)},
              {"lego_ended", pools.ended().ok() ? 0u : 1u}});
}

// Where time goes between servers.
void add_several(clients::FusionNode* several, std::vector<engine::Kernel::Counter>* to) {
  const clients::FusionPagesCounters& pages = several->pages()->counters();
  const clients::FetchCounters& times = several->member()->timestamps()->counters();
  to->insert(to->end(), {{"fusion_page_waits", pages.waits.load()},
                         {"fusion_page_wait_us", pages.wait_us.load()},
                         {"fusion_pages_from_memory", pages.gets.load()},
                         {"fusion_pages_from_storage", pages.storage_reads.load()},
                         {"fusion_pages_given_up", pages.given_up.load()},
                         {"fusion_give_up_rounds", pages.rounds.load()},
                         {"fusion_give_up_write_us", pages.write_us.load()},
                         {"fusion_give_up_report_us", pages.report_us.load()},
                         {"fusion_timestamp_fetches", times.fetches.load()},
                         {"fusion_timestamp_views", times.views.load()},
                         {"fusion_timestamp_commits", times.commits.load()}});
}

}  // namespace

std::vector<engine::Kernel::Counter> cluster_counters() {
  if (node == nullptr) return {};
  const clients::ComputeNode::Facts facts = node->facts();
  std::vector<engine::Kernel::Counter> counters = {
      {"cluster_epoch", facts.epoch.value},
      {"cluster_holds_lease", facts.holds_lease ? 1u : 0u},
      {"cluster_fenced", facts.fenced.empty() ? 0u : 1u},
      {"cluster_durable_lsn", facts.durable.value},
      {"cluster_replicas", facts.replicas},
      {"cluster_replicas_up_to_date", facts.replicas_reached},
      {"cluster_placement_generation", facts.placement_generation},
      {"cluster_log_appends", facts.log_calls},
      {"cluster_log_bytes_sent", facts.log_bytes_sent},
      {"cluster_pages_read", facts.pages_read},
      {"cluster_pages_read_ahead", facts.pages_read_ahead},
      {"cluster_get_page_calls", facts.page_calls},
      {"cluster_get_page_retries", facts.page_retries},
      {"cluster_get_page_wait_us", facts.page_wait_us},
      {"cluster_bad_pages", facts.bad_pages},
      {"cluster_pages_written", facts.pages_written},
      {"cluster_page_bytes_written", facts.page_bytes_written},
      {"cluster_page_write_calls", facts.page_write_calls},
      {"cluster_page_write_errors", facts.page_write_errors},
      {"cluster_pages_repaired", facts.pages_repaired},
      {"cluster_page_nodes", facts.page_nodes},
      {"cluster_page_nodes_in_sync", facts.page_nodes_in_sync},
      {"cluster_page_writes_ended", facts.page_writes_ended ? 1u : 0u},
      {"cluster_backpressure", facts.backpressure ? 1u : 0u},
      {"cluster_backpressure_waits", facts.backpressure_waits},
      {"cluster_backpressure_wait_us", facts.backpressure_wait_us},
      {"cluster_replay_backlog_bytes", facts.replay_backlog_bytes}};
  add_memory(node->memory(), &counters);
  if (one_of_several != nullptr) add_several(one_of_several.get(), &counters);
  if (adopter != nullptr) {
    const clients::PlaceAdopterCounters& places = adopter->counters();
    counters.insert(counters.end(), {{"cluster_adoptions", places.done},
                                     {"cluster_adoptions_failed", places.failed},
                                     {"cluster_adoption_last_us", places.last_us},
                                     {"cluster_adopts", places.now}});
  }
  return counters;
}

}  // namespace strata::glue
