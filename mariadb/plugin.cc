// The plugin: start, stop, and the table of callbacks the server calls.
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "base/diag.h"
#include "base/fault.h"
#include "io/file_system.h"
#include "mariadb/agent.h"
#include "mariadb/backup.h"
#include "mariadb/cluster.h"
#include "mariadb/collected_statistics.h"
#include "mariadb/connection.h"
#include "mariadb/coordinator.h"
#include "mariadb/databases.h"
#include "mariadb/ddl.h"
#include "mariadb/error_map.h"
#include "mariadb/foreign_keys.h"
#include "mariadb/freeze.h"
#include "mariadb/ha_strata.h"
#include "mariadb/information.h"
#include "mariadb/lock_waits.h"
#include "mariadb/object_files.h"
#include "mariadb/paths_of_server.h"
#include "mariadb/server_files.h"
#include "mariadb/server_tables.h"
#include "mariadb/settings.h"
#include "mariadb/shared_statistics.h"
#include "mariadb/status.h"
#include "mariadb/system_tables.h"
#include "mariadb/temporary.h"

// sql_show.cc of the server; no header of it declares the function.
void ignore_db_dirs_append(const char* name);

namespace strata::glue {
namespace {

std::unique_ptr<FileSystem> files_for_tests;

void print_diag(Severity severity, std::string_view message) {
  const int length = static_cast<int>(message.size());
  switch (severity) {
    case Severity::kInfo:
      sql_print_information("STRATA: %.*s", length, message.data());
      return;
    case Severity::kWarning:
      sql_print_warning("STRATA: %.*s", length, message.data());
      return;
    case Severity::kError:
      sql_print_error("STRATA: %.*s", length, message.data());
      return;
  }
}

engine::KernelOptions kernel_options() {
  engine::KernelOptions options;
  options.directory = data_folder();
  options.profile = setting_profile == nullptr ? "" : setting_profile;
  options.buffer_pool_bytes = setting_buffer_pool_size;
  options.log_segment_bytes = setting_log_segment_size;
  options.log_checkpoint_bytes = setting_log_checkpoint_size;
  options.checkpoint_interval_us = uint64_t{setting_checkpoint_interval} * 1'000'000;
  options.memory_checkpoint_interval_us = uint64_t{setting_lego_tier1_interval_ms} * 1'000;
  options.redo_from_memory = setting_lego_redo_tier == 1;
  options.log_buffer_bytes = static_cast<uint32_t>(setting_log_buffer_size);
  options.direct_io = setting_direct_io != 0;
  options.open_files = static_cast<uint32_t>(setting_open_files);
  options.purge_threads = setting_purge_threads;
  options.wait_listener = wait_listener();
  options.codecs = table_codecs();
  // A disk that remembers what was not yet durable, is full or fails on demand.
  files_for_tests = make_file_system_for_tests();
  if (files_for_tests != nullptr) options.file_system = files_for_tests.get();
  return options;
}

// A server that joins a cluster with an empty folder: it sees only databases that have one.
void make_database_folders() {
  std::set<std::string> schemas;
  kernel->for_each_table(false,
                         [&](const engine::TableSpec& spec) { schemas.insert(spec.schema); });
  for (const std::string& schema : schemas) {
    const std::string folder = mysql_real_data_home + schema;
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
      sql_print_error("STRATA: cannot make %s for the tables of that database: %s", folder.c_str(),
                      std::strerror(errno));
  }
}

// A folder next to those of the databases must not look like one. The name no database has ('#' is
// encoded in theirs) does the rest: CREATE DATABASE strata stays possible.
void hide_data_folder() {
  if (setting_data_dir == nullptr || std::strchr(setting_data_dir, '/') != nullptr) return;
  // The server's list has no lock: it only grows before clients can connect.
  if (!mysqld_server_started) ignore_db_dirs_append(setting_data_dir);
}

handler* create_handler(handlerton* hton, TABLE_SHARE* share, MEM_ROOT* memory) {
  return new (memory) ha_strata(hton, share);
}

// The server has all its own parts still, and no connection any more. Soon no thread of ours can be
// one of its own (server_thread.h).
void before_shutdown() {
  // What is thrown is logged; stop() does the rest.
  (void)guarded([] {
    stop_freezing();
    stop_collected_statistics();
    stop_shared_statistics();
    stop_server_tables();
    stop_object_files();
    stop_databases();
    stop_agent();
    return 0;
  });
  pre_shutdown();
}

void wire(handlerton* hton) {
  hton->flags = HTON_SUPPORTS_EXTENDED_KEYS | HTON_SUPPORTS_FOREIGN_KEYS | HTON_NO_PARTITION |
                HTON_REQUIRES_CLOSE_AFTER_TRUNCATE | HTON_TRUNCATE_REQUIRES_EXCLUSIVE_USE;
  hton->create = create_handler;
  hton->close_connection = close_connection;
  hton->kill_query = kill_query;
  hton->commit = commit;
  hton->rollback = rollback;
  hton->prepare = prepare;
  hton->recover = recover;
  hton->commit_by_xid = commit_by_xid;
  hton->rollback_by_xid = rollback_by_xid;
  hton->commit_ordered = commit_ordered;
  hton->commit_checkpoint_request = commit_checkpoint_request;
  hton->savepoint_offset = sizeof(ServerSavepoint);
  hton->savepoint_set = savepoint_set;
  hton->savepoint_rollback = savepoint_rollback;
  hton->savepoint_release = savepoint_release;
  hton->savepoint_rollback_can_release_mdl = savepoint_rollback_can_release_mdl;
  hton->start_consistent_snapshot = start_consistent_snapshot;
  hton->flush_logs = flush_logs;
  hton->pre_shutdown = before_shutdown;
  hton->show_status = show_engine_status;
  hton->prepare_for_backup = prepare_for_backup;
  hton->drop_table = drop_table;
  hton->drop_database = drop_database;
  hton->check_version = check_version;
  hton->signal_ddl_recovery_done = signal_ddl_recovery_done;
  hton->discover_table = discover_table;
  hton->discover_table_existence = discover_table_existence;
  hton->discover_table_names = discover_table_names;
}

// As after a crash: what was found stays as it is.
void give_kernel_up() {
  stop_adopting();
  delete std::exchange(kernel, nullptr);
  leave_cluster(false);
  files_for_tests.reset();
}

int start(void* plugin) {
  return guarded([&] {
    strata_hton = static_cast<handlerton*>(plugin);
    set_diag_sink(print_diag);
    hide_data_folder();
    arm_fault_from_environment();
    StatusOr<std::unique_ptr<engine::Kernel>> opened = open_kernel(kernel_options());
    if (!opened.ok()) {
      // The server goes on without the engine; nothing of the folder has been touched.
      sql_print_error("STRATA: %s", cause_and_remedy(opened.status()).c_str());
      files_for_tests.reset();
      end_rather_than_recover_without_engine();
      return 1;
    }
    kernel = std::move(opened).value().release();
    remove_temporary_folder();
    if (const Status coordinated = start_coordination(); !coordinated.ok()) {
      sql_print_error("STRATA: %s", cause_and_remedy(coordinated).c_str());
      give_kernel_up();
      end_rather_than_recover_without_engine();
      return 1;
    }
    make_database_folders();
    if (kernel->shares_tables()) {
      start_agent();
      start_databases();
      start_object_files();
    }
    replace_local_system_tables();
    if (kernel->shares_tables()) {
      start_server_tables();
      start_shared_statistics();
      start_collected_statistics();
      start_freezing();
    }
    // Of one server only, where several write.
    if (const uint64_t folder = cluster_identity(); folder != 0 && !kernel->shares_tables())
      start_server_files(folder);
    // INSTALL PLUGIN at run time: the server's DDL recovery is over.
    // What it cannot collect it logs, and the next start collects it.
    if (mysqld_server_started) (void)signal_ddl_recovery_done(strata_hton);
    wire(strata_hton);
    return 0;
  });
}

int stop(void*) {
  return guarded([&] {
    if (kernel == nullptr) return 0;
    stop_adopting();
    stop_server_files();
    stop_freezing();
    stop_collected_statistics();
    stop_shared_statistics();
    stop_server_tables();
    stop_object_files();
    stop_databases();
    stop_agent();
    stop_coordination();
    close_temporary_kernel();
    std::unique_ptr<engine::Kernel> last(kernel);
    const Status status = last->shutdown();
    if (!status.ok())
      sql_print_error("STRATA: shutdown: %.*s", static_cast<int>(status.message().size()),
                      status.message().data());
    kernel = nullptr;
    last.reset();
    leave_cluster(status.ok());
    return 0;
  });
}

st_mysql_storage_engine engine_descriptor = {MYSQL_HANDLERTON_INTERFACE_VERSION};

}  // namespace
}  // namespace strata::glue

// The only names the library shows.
#pragma GCC visibility push(default)
// clang-format off
maria_declare_plugin(strata)
{
  MYSQL_STORAGE_ENGINE_PLUGIN,
  &strata::glue::engine_descriptor,
  "STRATA",
  "the Strata project",
  "Transactional engine whose storage, memory and compute can be taken apart",
  PLUGIN_LICENSE_GPL,
  strata::glue::start,
  strata::glue::stop,
  0x0001,
  strata::glue::status_variables,
  strata::glue::system_variables,
  "0.1",
  MariaDB_PLUGIN_MATURITY_GAMMA
},
{
    MYSQL_INFORMATION_SCHEMA_PLUGIN,
    &strata::glue::information_descriptor,
    "STRATA_TRX",
    "the Strata project",
    "Transactions of STRATA that have changed or locked something",
    PLUGIN_LICENSE_GPL,
    strata::glue::init_strata_trx,
    nullptr,
    0x0001,
    nullptr,
    nullptr,
    "0.1",
    MariaDB_PLUGIN_MATURITY_GAMMA
  },
{
    MYSQL_INFORMATION_SCHEMA_PLUGIN,
    &strata::glue::information_descriptor,
    "STRATA_LOCK_WAITS",
    "the Strata project",
    "Transactions of STRATA that wait for a row",
    PLUGIN_LICENSE_GPL,
    strata::glue::init_strata_lock_waits,
    nullptr,
    0x0001,
    nullptr,
    nullptr,
    "0.1",
    MariaDB_PLUGIN_MATURITY_GAMMA
  },
{
    MYSQL_INFORMATION_SCHEMA_PLUGIN,
    &strata::glue::information_descriptor,
    "STRATA_POOL",
    "the Strata project",
    "Cached pages of STRATA",
    PLUGIN_LICENSE_GPL,
    strata::glue::init_strata_pool,
    nullptr,
    0x0001,
    nullptr,
    nullptr,
    "0.1",
    MariaDB_PLUGIN_MATURITY_GAMMA
  },
{
    MYSQL_INFORMATION_SCHEMA_PLUGIN,
    &strata::glue::information_descriptor,
    "STRATA_LOG",
    "the Strata project",
    "The redo log of STRATA",
    PLUGIN_LICENSE_GPL,
    strata::glue::init_strata_log,
    nullptr,
    0x0001,
    nullptr,
    nullptr,
    "0.1",
    MariaDB_PLUGIN_MATURITY_GAMMA
  }
maria_declare_plugin_end;
// clang-format on
#pragma GCC visibility pop
