#include "mariadb/databases.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/latch.h"
#include "base/thread_name.h"
#include "mariadb/cluster.h"
#include "mariadb/ddl.h"
#include "mariadb/definition_files.h"
#include "mariadb/error_map.h"
#include "mariadb/metadata_lock.h"
#include "mariadb/object_files.h"
#include "mariadb/paths_of_server.h"
#include "mariadb/server_thread.h"
// After the other headers of the server.
#include "sql_db.h"

namespace strata::glue {
namespace {

namespace fs = std::filesystem;

constexpr int kLookAtRowsMs = 50;
constexpr uint64_t kLookAtAllUs = 500'000;  // for what could not be done at once
constexpr double kFolderWaitS = 0.25;       // for its metadata lock; then at the next look
constexpr std::string_view kPrefix = "schema/";
constexpr std::string_view kOptions = "/db.opt";
constexpr char kIsThere = 'y';
constexpr char kIsDropped = 'n';

struct Row {
  bool is_there = false;
  std::string options;  // db.opt
  bool operator==(const Row&) const = default;
};
using Rows = std::map<std::string, Row>;

std::string key_of(const std::string& schema) { return std::string(kPrefix) + schema; }

std::string folder_of(const std::string& schema) { return mysql_real_data_home + schema; }

StatusOr<Rows> read_rows() {
  Rows rows;
  STRATA_RETURN_IF_ERROR(kernel->for_each_journal(kPrefix, [&](Bytes key, Bytes value) {
    // Tables of the server's own databases, which each server has, may be made as well.
    if (value.empty() || !is_database_folder(std::string(key.substr(kPrefix.size())))) return;
    rows[std::string(key.substr(kPrefix.size()))] = {value[0] == kIsThere,
                                                     std::string(value.substr(1))};
  }));
  STRATA_RETURN_IF_ERROR(may_answer());
  return rows;
}

Status put_row(engine::Session* session, const std::string& schema, bool is_there,
               const std::string& options) {
  return session->journal_put(key_of(schema),
                              std::string(1, is_there ? kIsThere : kIsDropped) + options);
}

std::string read_options(const std::string& schema) {
  std::ifstream in(folder_of(schema) + std::string(kOptions), std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::set<std::string> folders() {
  std::set<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(mysql_real_data_home, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;  // gone meanwhile
    const std::string name = entry->path().filename();
    if (is_database_folder(name) && entry->is_directory(ignored)) found.insert(name);
  }
  return found;
}

bool make_folder(const std::string& schema, const std::string& options) {
  if (::mkdir(folder_of(schema).c_str(), 0700) != 0) {
    if (errno == EEXIST) return true;
    sql_print_error("STRATA: cannot make %s for the tables of that database: %s",
                    folder_of(schema).c_str(), std::strerror(errno));
    return false;
  }
  if (options.empty()) return true;
  std::ofstream out(folder_of(schema) + std::string(kOptions), std::ios::binary);
  out << options;
  return true;
}

// Nothing that is of this server alone goes. True: the folder is gone.
bool remove_folder(const std::string& schema) {
  remove_definition_files_of(schema);
  remove_dropped_objects(schema);
  // If it stays, so does the folder, and the caller says so.
  const std::string folder = folder_of(schema);
  (void)::unlink((folder + std::string(kOptions)).c_str());
  std::error_code error;
  if (fs::is_symlink(folder, error)) return false;
  // The server's own function: it remembers that there was such a database until that has removed
  // one. What it returns says nothing.
  (void)rm_dir_w_symlink(folder.c_str(), 0);
  return ::access(folder.c_str(), F_OK) != 0;
}

class Databases {
 public:
  void start() {
    {
      const MutexLock lock(mutex_);
      here_ = folders();
    }
    // Out of memory: as above; its thread begins with another look.
    (void)guarded([&] {
      look();
      return 0;
    });
    // Without the first, folders are seen when all is looked at; without the second, stop() waits
    // for the next look at the rows.
    notify_ = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (notify_ >= 0)
      (void)::inotify_add_watch(notify_, mysql_real_data_home,
                                IN_CREATE | IN_DELETE | IN_MOVED_TO | IN_MOVED_FROM | IN_ONLYDIR);
    stop_ = ::eventfd(0, EFD_CLOEXEC);
    stopping_ = false;
    thread_ = std::thread([this] { run(); });
  }
  void stop() {
    stopping_ = true;
    if (stop_ >= 0) (void)::eventfd_write(stop_, 1);
    if (thread_.joinable()) thread_.join();
    for (int* const file : {&notify_, &stop_})
      if (*file >= 0) (void)::close(std::exchange(*file, -1));
  }
  // DB4: dropped by this server itself.
  void forget(const std::string& schema) {
    const MutexLock lock(mutex_);
    here_.erase(schema);
  }
  // DB4: its row was there.
  void is_here(const std::string& schema) {
    const MutexLock lock(mutex_);
    here_.insert(schema);
  }
  // DB4: what is dropped, as far as this server has heard.
  bool is_new(const std::string& schema) {
    const MutexLock lock(mutex_);
    return !here_.contains(schema);
  }

 private:
  void run() {
    name_this_thread("databases");
    pollfd signs[] = {{notify_, POLLIN, 0}, {stop_, POLLIN, 0}};  // below 0: left out
    while (!stopping_) {
      (void)::poll(signs, std::size(signs), kLookAtRowsMs);
      if (stopping_) return;
      // Out of memory: it is looked at again in a moment.
      (void)guarded([&] {
        if (take_events() || monotonic_us() - looked_us_ >= kLookAtAllUs || rows_have_changed())
          look();
        return 0;
      });
    }
  }

  // A folder was made or removed, or more has happened than the system has told of.
  bool take_events() {
    alignas(inotify_event) char buffer[4096];
    bool any = false;
    ssize_t got = 0;
    while (notify_ >= 0 && (got = ::read(notify_, buffer, sizeof buffer)) > 0) {
      inotify_event event;
      for (ssize_t at = 0; at < got; at += static_cast<ssize_t>(sizeof event + event.len)) {
        std::memcpy(&event, buffer + at, sizeof event);
        any |= (event.mask & (IN_ISDIR | IN_Q_OVERFLOW)) != 0;
      }
    }
    return any;
  }

  bool rows_have_changed() {
    const StatusOr<Rows> rows = read_rows();
    return rows.ok() && *rows != rows_;
  }

  // DB1
  void look() {
    looked_us_ = monotonic_us();
    const StatusOr<Rows> rows = read_rows();
    if (!rows.ok()) return;  // the next time
    rows_ = *rows;
    const std::set<std::string> found = folders();
    std::set<std::string> changed;
    for (const auto& [schema, row] : *rows)
      if (row.is_there != found.contains(schema) || (!row.is_there && is_new(schema)))
        changed.insert(schema);
    for (const std::string& schema : found)
      if (!rows->contains(schema)) changed.insert(schema);
    for (const std::string& schema : found) {
      if (changed.contains(schema)) continue;
      is_here(schema);
    }
    for (const std::string& schema : changed) {
      const ServerThread thread;
      // Keeps CREATE and DROP DATABASE of this server away, and whoever uses tables of it.
      const MetadataLock alone(thread.thd(), MDL_EXCLUSIVE, MDL_key::SCHEMA,
                               plain_name(schema).c_str(), "", kFolderWaitS);
      if (alone.has_it()) bring_in_line(schema);
    }
  }

  // Both are read again: nobody of this server changes the folder now.
  void bring_in_line(const std::string& schema) {
    const StatusOr<Rows> rows = read_rows();
    if (!rows.ok()) return;
    const auto row = rows->find(schema);
    const bool is_folder = folders().contains(schema);
    const bool is_row = row != rows->end() && row->second.is_there;
    const bool new_here = is_folder && is_new(schema);
    if (is_row && !is_folder) {
      if (!make_folder(schema, row->second.options)) return;
      my_dbopt_cleanup();  // the server remembers options of what had that name before
      sql_print_information("STRATA: database %s was made by another server", schema.c_str());
    } else if (is_folder && !is_row && (row == rows->end() || new_here)) {
      const std::string options = read_options(schema);
      const Status put = run_ddl(Killable::kNo, [&](engine::Session* session) {
        return put_row(session, schema, true, options);
      });
      if (!put.ok()) return;
    } else if (is_folder && !is_row) {
      if (!remove_folder(schema)) {
        if (kept_.insert(schema).second)
          sql_print_warning(
              "STRATA: database %s was dropped by another server; its folder stays here, since "
              "there is something in it that is of this server alone",
              schema.c_str());
        return;
      }
      kept_.erase(schema);
      sql_print_information("STRATA: database %s was dropped by another server", schema.c_str());
      return forget(schema);
    }
    if (is_folder || is_row) is_here(schema);
  }

  Mutex mutex_{LatchRank::kServer};
  std::set<std::string> here_;  // mutex_
  std::atomic<bool> stopping_{true};
  int notify_ = -1, stop_ = -1;
  std::thread thread_;
  // Of the thread:
  std::set<std::string> kept_;
  Rows rows_;  // as they were at the last look
  uint64_t looked_us_ = 0;
};

Databases databases;

}  // namespace

void start_databases() { databases.start(); }
void stop_databases() { databases.stop(); }

Status use_database(engine::Session* session, const std::string& schema) {
  const Status used = session->open_table(schema, "").status();
  if (!used.ok() && !is_not_found(used)) return used;
  STRATA_ASSIGN_OR_RETURN(const Rows rows, read_rows());
  const auto row = rows.find(schema);
  const bool is_folder = ::access(folder_of(schema).c_str(), F_OK) == 0;
  const bool is_row = row != rows.end() && row->second.is_there;
  if (is_row && !is_folder && !make_folder(schema, row->second.options)) return error_not_found();
  if (!is_row && (!is_folder || (row != rows.end() && !databases.is_new(schema))))
    return error_not_found();
  if (!is_row) STRATA_RETURN_IF_ERROR(put_row(session, schema, true, read_options(schema)));
  databases.is_here(schema);
  return ok_status();
}

Status drop_database_for_all(const std::string& schema) {
  const Status dropped = run_ddl(Killable::kNo, [&](engine::Session* session) -> Status {
    STRATA_RETURN_IF_ERROR(session->lock_name(schema, ""));
    std::vector<std::string> left;
    kernel->for_each_table(false, [&](const engine::TableSpec& spec) {
      if (spec.schema == schema) left.push_back(spec.name);
    });
    for (const std::string& table : left) {
      const Status gone = session->drop_table(schema, table, true);
      if (!gone.ok() && !is_not_found(gone)) return gone;
    }
    STRATA_RETURN_IF_ERROR(put_row(session, schema, false, std::string()));
    return erase_objects_of_database(session, schema);
  });
  if (dropped.ok()) {
    databases.forget(schema);
    // Of what others have made since the server has looked for files: it is dropped as well.
    remove_definition_files_of(schema);
    remove_dropped_objects(schema);
  }
  return dropped;
}

bool make_database_folder(const std::string& schema) { return make_folder(schema, std::string()); }

}  // namespace strata::glue
