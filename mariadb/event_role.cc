#include "mariadb/event_role.h"

#include <utility>

#include "base/clock.h"
#include "mariadb/cluster.h"
#include "mariadb/connection.h"
#include "mariadb/error_map.h"
#include "mariadb/metadata_lock.h"
#include "mariadb/server_thread.h"
// After the other headers of the server.
#include "events.h"
#include "sql_base.h"
// After that.
#include "event_data_objects.h"
#include "event_db_repository.h"
#include "event_queue.h"

namespace strata::glue {
namespace {

constexpr uint64_t kTryUs = 2'000'000;   // between two tries to get the role
constexpr uint64_t kTryForUs = 200'000;  // that each of them waits
constexpr double kLockWaitS = 0.25;      // for an event that a statement is at
constexpr std::string_view kRole = "#events";

// The queue of the server's scheduler, which the server shows nobody. Explicit instantiations may
// name what is private.
Event_queue** queue_of_server();
template <Event_queue** kQueue>
struct Reach {
  friend Event_queue** queue_of_server() { return kQueue; }
};
template struct Reach<&Events::event_queue>;

using Matches = bool (*)(const LEX_CSTRING*, Event_basic*);
void drop_from_queue(Event_queue* queue, THD* thd, const LEX_CSTRING* pattern, Matches matches);
template <auto kDrop>
struct ReachDrop {
  friend void drop_from_queue(Event_queue* queue, THD* thd, const LEX_CSTRING* pattern,
                              Matches matches) {
    (queue->*kDrop)(thd, pattern, matches);
  }
};
template struct ReachDrop<&Event_queue::drop_matching_events>;

using EventName = std::pair<std::string, std::string>;  // database, name

std::atomic<bool> has_role{false};
std::atomic<bool> is_shared{false};  // the table of events is the cluster's
bool was_on = false;                 // event_scheduler at the start
// Of the thread:
std::unique_ptr<engine::Session> role;
bool must_read = true;
uint64_t try_at_us = 0;

bool is_wanted() {
  return Events::inited != 0 && Events::opt_event_scheduler == Events::EVENTS_ON && !opt_readonly;
}

std::string text_of(Field* field) {
  String buffer;
  const String* const value = field->val_str(&buffer);
  return value == nullptr ? std::string() : std::string(value->ptr(), value->length());
}

// Nothing: it cannot be read now.
std::optional<std::set<EventName>> read_names(THD* thd) {
  TABLE* table = nullptr;
  if (Event_db_repository::open_event_table(thd, TL_READ, &table)) return std::nullopt;
  table->use_all_columns();
  std::set<EventName> events;
  int error = table->file->ha_rnd_init(true);
  while (error == 0) {
    error = table->file->ha_rnd_next(table->record[0]);
    if (error == 0)
      events.emplace(text_of(table->field[ET_FIELD_DB]), text_of(table->field[ET_FIELD_NAME]));
  }
  // The scan has had its outcome, which counts.
  (void)table->file->ha_rnd_end();
  close_mysql_tables(thd);
  if (error != HA_ERR_END_OF_FILE) return std::nullopt;
  return events;
}

LEX_CSTRING as_name(const std::string& name) { return {name.c_str(), name.size()}; }

// The scheduler stands still. Local statements are kept away from the event: they change the row,
// then the queue. False: not now.
bool read_event(THD* thd, const EventName& event) {
  const MetadataLock alone(thd, MDL_EXCLUSIVE, MDL_key::EVENT, event.first.c_str(),
                           event.second.c_str(), kLockWaitS);
  if (!alone.has_it()) return false;
  const LEX_CSTRING schema = as_name(event.first), name = as_name(event.second);
  auto element = std::make_unique<Event_queue_element>();
  if (Events::get_db_repository()->load_named_event(thd, &schema, &name, element.get())) {
    thd->clear_error();
    return false;  // dropped meanwhile, or not to be read
  }
  (*queue_of_server())->update_event(thd, &schema, &name, element.release());
  return true;
}

bool matches_all(const LEX_CSTRING*, Event_basic*) { return true; }

// EV4
void read_events(THD* thd) {
  Events::stop();
  const std::optional<std::set<EventName>> events = read_names(thd);
  thd->clear_error();
  if (!events.has_value()) return;
  const LEX_CSTRING nothing{"", 0};
  drop_from_queue(*queue_of_server(), thd, &nothing, matches_all);
  must_read = false;
  for (const EventName& event : *events) must_read |= !read_event(thd, event);
}

void let_go() {
  if (role == nullptr) return;
  has_role = false;
  // It has changed nothing; the name is let go in any case.
  role->rollback().IgnoreError();
  role.reset();
}

// EV5. The server stops the scheduler once it has said that it ends, and then waits for every
// thread that there is: so a scheduler that was started meanwhile is stopped by who started it.
void run_events() {
  int error = 0;
  // It logs why it cannot; tried again at the next look.
  if (is_wanted() && !abort_loop) (void)Events::start(&error);
  if (abort_loop) Events::stop();
}

// EV1
void try_to_get() {
  if (monotonic_us() < try_at_us) return;
  auto session = kernel->new_session();
  session->set_lock_wait_timeout_us(kTryForUs);
  session->begin(engine::Isolation::kReadCommitted);
  const Status locked = session->lock_name(kRole, "");
  try_at_us = monotonic_us() + kTryUs;
  if (!locked.ok()) {
    // Likewise.
    session->rollback().IgnoreError();
    return;
  }
  role = std::move(session);
  must_read = has_role = true;
  sql_print_information("STRATA: this server runs the events of the cluster");
}

}  // namespace

void prepare_event_role() {
  was_on =
      Events::opt_event_scheduler == Events::EVENTS_ON && kernel->table_exists("mysql", "event");
  if (was_on) Events::opt_event_scheduler = Events::EVENTS_OFF;
}

void look_after_events(bool changed) {
  if (!is_shared) is_shared = kernel->table_exists("mysql", "event");
  if (!is_shared || Events::inited == 0) return;
  if (std::exchange(was_on, false)) {
    Events::set_original_state(Events::EVENTS_ON);
    Events::opt_event_scheduler = Events::EVENTS_ON;
  }
  must_read |= changed;
  if (!is_wanted()) return let_go();
  if (!may_answer().ok()) return;
  const ServerThread thread;
  thread.thd()->set_time();
  if (role == nullptr) {
    Events::stop();  // EV2: somebody has switched it on here
    try_to_get();
    if (role == nullptr) return;
  }
  if (must_read) read_events(thread.thd());
  run_events();
}

void leave_event_role() {
  if (role == nullptr) return;
  const ServerThread thread;
  if (Events::inited != 0) Events::stop();
  let_go();
}

bool runs_events(THD* thd) {
  return thd->system_thread == SYSTEM_THREAD_EVENT_SCHEDULER ||
         thd->system_thread == SYSTEM_THREAD_EVENT_WORKER;
}

int refuse_if_events_run_elsewhere(THD* thd) {
  if (!runs_events(thd) || has_role || !is_shared) return 0;
  my_printf_error(ER_UNKNOWN_ERROR, "STRATA: events run on another server of the cluster", MYF(0));
  return HA_ERR_GENERIC;
}

}  // namespace strata::glue
