#include "mariadb/object_files.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>
#include <utility>

#include "base/crc32c.h"
#include "base/latch.h"
#include "base/thread_name.h"
#include "mariadb/cluster.h"
#include "mariadb/ddl.h"
#include "mariadb/error_map.h"
#include "mariadb/metadata_lock.h"
#include "mariadb/object_names.h"
#include "mariadb/object_versions.h"
#include "mariadb/paths_of_server.h"
#include "mariadb/server_thread.h"
// After the other headers of the server.
#include "sp_cache.h"
#include "sql_db.h"

namespace strata::glue {
namespace {

namespace fs = std::filesystem;

constexpr int kLookMs = 200;
constexpr double kLockWaitS = 0.25;  // for a metadata lock; then at the next look
constexpr std::string_view kBaseBegins = "strata-objects-1";
constexpr uint32_t kEvents = IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_CREATE;

// Journal key -> value.
using Objects = std::map<std::string, std::string, std::less<>>;
const std::string kNothing;

const std::string& value_of(const Objects& objects, const std::string& key) {
  const auto it = objects.find(key);
  return it == objects.end() ? kNothing : it->second;
}
void set_value(Objects* objects, const std::string& key, const std::string& value) {
  if (value.empty())
    objects->erase(key);
  else
    (*objects)[key] = value;
}

StatusOr<Objects> read_rows(const std::string& prefix) {
  Objects rows;
  STRATA_RETURN_IF_ERROR(kernel->for_each_journal(
      prefix, [&](Bytes key, Bytes value) { rows[std::string(key)] = std::string(value); }));
  STRATA_RETURN_IF_ERROR(may_answer());
  return rows;
}

StatusOr<std::string> read_row(const std::string& key) {
  STRATA_ASSIGN_OR_RETURN(const Objects rows, read_rows(key));
  return value_of(rows, key);
}

Status put_row(engine::Session* session, const std::string& key, const std::string& value) {
  return value.empty() ? session->journal_erase(key) : session->journal_put(key, value);
}

uint64_t this_boot() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(in, text);
  return crc32c(text.data(), text.size());
}

// Begins as a change made here does, in the whole cluster (OF3).
StatusOr<std::unique_ptr<engine::Session>> begin_change() {
  std::unique_ptr<engine::Session> session = kernel->new_session();
  session->begin(engine::Isolation::kReadCommitted);
  STRATA_RETURN_IF_ERROR(note_change(session.get(), SharedKind::kFiles));
  return session;
}

class ObjectFiles {
 public:
  void start();
  void stop();
  Status publish(engine::Session* session, const std::string& key);
  Status fetch(const std::string& key);
  StatusOr<bool> is_current(const std::string& key);
  void remove_dropped(const std::string& schema);
  [[nodiscard]] bool runs() const noexcept { return runs_; }

 private:
  // One at a time changes files and what is known of them; it may wait for the disk. Whoever waits
  // for a metadata lock or a name has it before.
  class Turn {
   public:
    explicit Turn(ObjectFiles* of) : of_(of) {
      MutexLock lock(of_->mutex_);
      while (of_->busy_) of_->changed_.wait(lock);
      of_->busy_ = true;
    }
    ~Turn() {
      {
        const MutexLock lock(of_->mutex_);
        of_->busy_ = false;
      }
      of_->changed_.notify_all();
    }
    Turn(const Turn&) = delete;

   private:
    ObjectFiles* const of_;
  };
  enum class Known : uint8_t { kNothing, kAll, kBeforePowerLoss };

  void run();
  void look();
  void take_events();
  void watch_folders();
  bool watch(const std::string& folder, const std::string& name, uint32_t events);
  Status find_changes(std::set<std::string>* changed);
  Status record(const std::set<std::string>& changed);
  [[nodiscard]] bool row_counts(const std::string& key, const std::string& local) const;
  Status follow();
  bool apply(const std::string& key, const std::string& row);
  void report(const char* what, const Status& status);
  Known load_base();
  void save_base();

  Mutex mutex_{LatchRank::kServer};
  CondVar changed_;
  bool busy_ = false;  // mutex_
  // Of whoever has the turn:
  Objects base_;
  bool base_is_saved_ = true;

  std::atomic<bool> runs_{false};
  // Of the thread:
  std::set<std::string> dirty_;           // objects whose files may have changed
  std::set<std::string> dirty_triggers_;  // databases
  std::map<int, std::string> folders_;    // watched; by inotify's number
  bool look_at_all_ = true;
  bool told_of_all_ = false;
  bool starting_ = true;  // OF2
  bool after_power_loss_ = false;
  bool pending_ = true;  // rows that are not in the files yet
  std::string version_;  // of the rows that are
  bool reported_ = false;
  int notify_ = -1, stop_ = -1;
  std::thread thread_;
};

ObjectFiles objects;

// --- what this server has last had in common with the others ---

std::string base_path() { return data_folder() + "/objects"; }

ObjectFiles::Known ObjectFiles::load_base() {
  std::ifstream in(base_path(), std::ios::binary);
  if (!in) return Known::kNothing;
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (bytes.size() < 4 ||
      load_u32(bytes.data() + bytes.size() - 4) != crc32c(bytes.data(), bytes.size() - 4)) {
    sql_print_warning("STRATA: %s is damaged; what other servers have of views and triggers counts",
                      base_path().c_str());
    return Known::kBeforePowerLoss;
  }
  ByteReader reader(Bytes(bytes).substr(0, bytes.size() - 4));
  if (reader.bytes32() != kBaseBegins) return Known::kBeforePowerLoss;
  const uint64_t boot = reader.u64();
  while (reader.ok() && reader.remaining() != 0) {
    const std::string key(reader.bytes32());
    const std::string value(reader.bytes32());
    if (reader.ok()) base_[key] = value;
  }
  return boot == this_boot() ? Known::kAll : Known::kBeforePowerLoss;
}

void ObjectFiles::save_base() {
  if (base_is_saved_) return;
  std::string bytes;
  append_bytes32(&bytes, kBaseBegins);
  append_u64(&bytes, this_boot());
  for (const auto& [key, value] : base_) {
    append_bytes32(&bytes, key);
    append_bytes32(&bytes, value);
  }
  append_u32(&bytes, crc32c(bytes.data(), bytes.size()));
  const Status saved = replace_object_file(base_path(), bytes);
  base_is_saved_ = saved.ok();
  if (!saved.ok()) report("remembered", saved);
}

// Once: it is tried again at every look.
void ObjectFiles::report(const char* what, const Status& status) {
  if (std::exchange(reported_, true)) return;
  sql_print_warning("STRATA: views, triggers and database options could not be %s yet: %s", what,
                    std::string(status.message()).c_str());
}

// --- changes of this server ---

bool ObjectFiles::watch(const std::string& folder, const std::string& name, uint32_t events) {
  const int number = ::inotify_add_watch(notify_, folder.c_str(), events | IN_ONLYDIR);
  if (number >= 0) folders_[number] = name;
  return number >= 0 || errno == ENOENT;
}

// Watching a folder again changes nothing. Where the system watches no more, all are looked at.
void ObjectFiles::watch_folders() {
  told_of_all_ = watch(mysql_real_data_home, std::string(), IN_CREATE | IN_MOVED_TO | IN_DELETE);
  std::error_code error;
  for (fs::directory_iterator entry(mysql_real_data_home, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    const std::string name = entry->path().filename();
    if (is_database_folder(name) && entry->is_directory(ignored))
      told_of_all_ &= watch(entry->path().string(), name, kEvents);
  }
}

void ObjectFiles::take_events() {
  alignas(inotify_event) char buffer[16384];
  for (;;) {
    const ssize_t got = ::read(notify_, buffer, sizeof buffer);
    if (got <= 0) return;
    for (ssize_t at = 0; at < got;) {
      inotify_event event;
      std::memcpy(&event, buffer + at, sizeof event);
      const char* const text = buffer + at + sizeof event;
      at += static_cast<ssize_t>(sizeof event + event.len);
      const auto folder = folders_.find(event.wd);
      if ((event.mask & IN_Q_OVERFLOW) != 0 || folder == folders_.end() || folder->second.empty()) {
        look_at_all_ = true;  // or there is another folder
        continue;
      }
      if (event.len == 0) continue;
      const fs::path file(std::string(text, ::strnlen(text, event.len)));
      const std::string& schema = folder->second;
      if (file == kOptionsFile)
        dirty_.insert(options_key(schema));
      else if (file.extension() == ".frm")
        dirty_.insert(view_key(schema, file.stem().string()));
      else if (file.extension() == ".TRG" || file.extension() == ".TRN")
        dirty_triggers_.insert(schema);
    }
  }
}

// OF1. `changed`: objects whose files are not as they were; each is looked at once more later.
Status ObjectFiles::find_changes(std::set<std::string>* changed) {
  std::set<std::string> candidates;
  const bool all = std::exchange(look_at_all_, true) || !told_of_all_;  // after a failure, too
  if (all) {
    watch_folders();
    STRATA_RETURN_IF_ERROR(list_objects(&candidates));
    const Turn turn(this);
    for (const auto& [key, value] : base_) candidates.insert(key);
  } else {
    candidates = std::move(dirty_);
    for (const std::string& schema : dirty_triggers_) {
      STRATA_RETURN_IF_ERROR(list_triggers(schema, &candidates));
      const Turn turn(this);
      for (const auto& [key, value] : base_)
        if (key.starts_with(triggers_prefix(schema))) candidates.insert(key);
    }
  }
  dirty_.clear();
  dirty_triggers_.clear();
  const Turn turn(this);
  for (const std::string& key : candidates) {
    const StatusOr<std::string> local = read_object(key);
    if (!local.ok()) {
      dirty_.insert(key);  // OF6
      continue;
    }
    if (*local == value_of(base_, key)) continue;
    if (is_of_triggers(key) && base_.find(key) == base_.end()) {
      // Of a table that other servers have, too. Their statement publishes them in any case.
      const TableName table = table_of(key);
      if (!kernel->table_exists(table.schema, table.table)) continue;
    }
    changed->insert(key);
  }
  look_at_all_ = false;
  return ok_status();
}

// OF2
bool ObjectFiles::row_counts(const std::string& key, const std::string& local) const {
  return starting_ || local.empty() || is_of_triggers(key);
}

Status ObjectFiles::record(const std::set<std::string>& changed) {
  const Turn turn(this);
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Session> session, begin_change());
  STRATA_ASSIGN_OR_RETURN(const Objects rows, read_rows(std::string(kObjects)));
  Objects written;
  for (const std::string& key : changed) {
    STRATA_ASSIGN_OR_RETURN(const std::string local, read_object(key));
    const std::string& row = value_of(rows, key);
    const std::string& base = value_of(base_, key);
    if (local == row) {
      base_is_saved_ &= local == base;
      set_value(&base_, key, local);
      continue;
    }
    if (local == base) continue;
    const bool others_have_changed_it = row != base;
    if (others_have_changed_it && row_counts(key, local)) continue;
    if (after_power_loss_ && !row.empty()) continue;
    STRATA_RETURN_IF_ERROR(put_row(session.get(), key, local));
    written[key] = local;
  }
  if (written.empty()) return session->rollback();
  // If nobody knows what has come of it, the next look compares.
  STRATA_RETURN_IF_ERROR(session->commit(engine::Durability::kSync));
  for (const auto& [key, value] : written) set_value(&base_, key, value);
  base_is_saved_ = false;
  return ok_status();
}

// --- changes of others ---

// Makes files what the row says. False: not yet.
bool ObjectFiles::apply(const std::string& key, const std::string& row) {
  const ServerThread thread;
  const TableName name = table_of(key);
  const std::string schema = plain_name(name.schema);
  const bool of_database = is_of_options(key);
  const MetadataLock alone(thread.thd(), MDL_EXCLUSIVE,
                           of_database ? MDL_key::SCHEMA : MDL_key::TABLE, schema.c_str(),
                           of_database ? "" : plain_name(name.table).c_str(), kLockWaitS);
  if (!alone.has_it()) return false;
  const Turn turn(this);
  const StatusOr<std::string> local = read_object(key);
  if (!local.ok()) return false;
  const std::string base = value_of(base_, key);
  if (*local != row) {
    const bool changed_here = *local != base;
    if (changed_here && !after_power_loss_ && !row_counts(key, *local)) return false;
    const Status written = write_object(key, *local, row);
    if (is_not_found(written)) return false;  // the database is not here yet
    if (!written.ok()) {
      report("taken over from other servers", written);
      return false;
    }
    if (of_database) {
      my_dbopt_cleanup();
    } else {
      tdc_remove_table(thread.thd(), schema.c_str(), plain_name(name.table).c_str());
      sp_cache_invalidate();  // which tables and routines a statement uses
    }
  }
  base_is_saved_ &= base == row;
  set_value(&base_, key, row);
  return true;
}

Status ObjectFiles::follow() {
  STRATA_ASSIGN_OR_RETURN(const std::string version, version_of(SharedKind::kFiles));
  if (version == version_ && !pending_) return ok_status();
  STRATA_ASSIGN_OR_RETURN(const Objects rows, read_rows(std::string(kObjects)));
  std::set<std::string> differ;
  {
    const Turn turn(this);
    for (const auto& [key, row] : rows)
      if (after_power_loss_ || value_of(base_, key) != row) differ.insert(key);
    for (const auto& [key, base] : base_)
      if (value_of(rows, key) != base) differ.insert(key);
  }
  bool all = true;
  for (const std::string& key : differ) {
    // As it is now: it may have changed again.
    const StatusOr<std::string> row = read_row(key);
    all &= row.ok() && apply(key, *row);
  }
  pending_ = !all;
  version_ = version;
  return ok_status();
}

// --- the thread ---

void ObjectFiles::look() {
  std::set<std::string> changed;
  Status status = find_changes(&changed);
  if (status.ok() && !changed.empty()) {
    pending_ = true;  // others may have been first
    status = record(changed);
    if (!status.ok()) dirty_.insert(changed.begin(), changed.end());
  }
  if (status.ok()) status = follow();
  if (status.ok())
    reported_ = false;
  else
    report("compared with what other servers have", status);
  const Turn turn(this);
  save_base();
}

void ObjectFiles::run() {
  name_this_thread("object-files");
  for (;;) {
    pollfd ready[] = {{notify_, POLLIN, 0}, {stop_, POLLIN, 0}};
    while (::poll(ready, 2, kLookMs) < 0 && errno == EINTR) {
    }
    if ((ready[1].revents & POLLIN) != 0) return;
    const int failed = guarded([&] {
      take_events();
      look();
      return 0;
    });
    if (failed != 0) look_at_all_ = true;  // out of memory: what was told of may be forgotten
  }
}

void ObjectFiles::start() {
  notify_ = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  stop_ = ::eventfd(0, EFD_CLOEXEC);
  starting_ = look_at_all_ = true;
  runs_ = true;
  // Out of memory: the thread looks at everything again in a moment.
  (void)guarded([&] {
    after_power_loss_ = load_base() == Known::kBeforePowerLoss;
    base_is_saved_ = false;
    look();
    return 0;
  });
  starting_ = after_power_loss_ = false;
  thread_ = std::thread([this] { run(); });
}

void ObjectFiles::stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  // A counter with room in it: this cannot fail.
  (void)!::write(stop_, &one, sizeof one);
  thread_.join();
  // Out of memory: what changed is found by the next start, which compares all.
  (void)guarded([&] {
    take_events();
    look();
    return 0;
  });
  ::close(stop_);
  ::close(notify_);
}

// --- statements ---

Status ObjectFiles::publish(engine::Session* session, const std::string& key) {
  const Turn turn(this);
  STRATA_ASSIGN_OR_RETURN(const std::string local, read_object(key));
  STRATA_ASSIGN_OR_RETURN(const std::string row, read_row(key));
  if (local == row) {
    base_is_saved_ &= local == value_of(base_, key);
    set_value(&base_, key, local);
    return session->rollback();
  }
  STRATA_RETURN_IF_ERROR(note_change(session, SharedKind::kFiles));
  STRATA_RETURN_IF_ERROR(put_row(session, key, local));
  STRATA_RETURN_IF_ERROR(session->commit(engine::Durability::kSync));
  set_value(&base_, key, local);
  base_is_saved_ = false;
  return ok_status();
}

Status ObjectFiles::fetch(const std::string& key) {
  STRATA_ASSIGN_OR_RETURN(const std::string row, read_row(key));
  const Turn turn(this);
  if (row == value_of(base_, key)) return ok_status();  // what differs here is this server's change
  STRATA_ASSIGN_OR_RETURN(const std::string local, read_object(key));
  if (local != row) STRATA_RETURN_IF_ERROR(write_object(key, local, row));
  set_value(&base_, key, row);
  base_is_saved_ = false;
  sp_cache_invalidate();
  return ok_status();
}

StatusOr<bool> ObjectFiles::is_current(const std::string& key) {
  STRATA_ASSIGN_OR_RETURN(const std::string row, read_row(key));
  const Turn turn(this);
  return row == value_of(base_, key);
}

void ObjectFiles::remove_dropped(const std::string& schema) {
  const StatusOr<Objects> rows = read_rows(std::string(kObjects));
  if (!rows.ok()) return;
  const Turn turn(this);
  std::vector<std::string> gone;
  for (const auto& [key, base] : base_)
    if (table_of(key).schema == schema && value_of(*rows, key).empty()) gone.push_back(key);
  for (const std::string& key : gone) {
    const StatusOr<std::string> local = read_object(key);
    if (!local.ok() || (*local != value_of(base_, key) && !local->empty())) continue;
    if (!write_object(key, *local, std::string()).ok()) continue;
    base_.erase(key);
    base_is_saved_ = false;
  }
  // If one stays, so does the folder, and the caller says so.
  remove_names_without_triggers(schema).IgnoreError();
}

}  // namespace

void start_object_files() { objects.start(); }
void stop_object_files() { objects.stop(); }

Status erase_triggers(engine::Session* session, const TableName& table) {
  STRATA_ASSIGN_OR_RETURN(const bool has, has_triggers(table));
  if (!has) return ok_status();
  STRATA_RETURN_IF_ERROR(note_change(session, SharedKind::kFiles));
  return session->journal_erase(triggers_key(table));
}

StatusOr<bool> has_current_triggers(const TableName& table) {
  return objects.is_current(triggers_key(table));
}

Status publish_triggers(engine::Session* session, const TableName& table) {
  const Status published = objects.publish(session, triggers_key(table));
  // What is told is why; it is undone at once or in the background (engine E18).
  if (!published.ok() && session->in_transaction()) session->rollback().IgnoreError();
  return published;
}

Status fetch_triggers(const TableName& table) {
  return objects.runs() ? objects.fetch(triggers_key(table)) : ok_status();
}

StatusOr<bool> has_triggers(const TableName& table) {
  STRATA_ASSIGN_OR_RETURN(const std::string row, read_row(triggers_key(table)));
  return !row.empty();
}

Status publish_renamed(const TableName& table) {
  const std::unique_ptr<engine::Session> session = kernel->new_session();
  if (current_thd != nullptr) prepare_ddl(current_thd, session.get());
  session->begin(engine::Isolation::kReadCommitted);
  STRATA_RETURN_IF_ERROR(session->lock_name(table.schema, table.table));
  return publish_triggers(session.get(), table);
}

Status erase_objects_of_database(engine::Session* session, const std::string& schema) {
  STRATA_ASSIGN_OR_RETURN(const Objects rows, read_rows(std::string(kObjects)));
  bool noted = false;
  for (const auto& [key, value] : rows) {
    if (table_of(key).schema != schema) continue;
    if (!std::exchange(noted, true))
      STRATA_RETURN_IF_ERROR(note_change(session, SharedKind::kFiles));
    STRATA_RETURN_IF_ERROR(session->journal_erase(key));
  }
  return ok_status();
}

void remove_dropped_objects(const std::string& schema) { objects.remove_dropped(schema); }

}  // namespace strata::glue
