#include "mariadb/definition_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>

#include "base/fault.h"
#include "mariadb/ddl.h"
#include "mariadb/error_map.h"
#include "mariadb/paths_of_server.h"

namespace strata::glue {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFileNameBytesMost = 255;     // NAME_MAX of every file system in use
constexpr uint64_t kDefinitionMost = 8 << 20;  // more is no definition
constexpr std::string_view kEngineName = "STRATA";
constexpr std::string_view kViewBegins = "TYPE=VIEW";
constexpr std::string_view kTemporaryPrefix = "#sql-strata-";

std::string path_of(const TableName& name) {
  return "./" + name.schema + "/" + name.file_name() + reg_ext;
}

// Nothing: it is not there or cannot be read; either way it is not what it should be.
std::optional<std::string> read_whole(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::optional<std::string> bytes;
  struct stat about {};
  if (::fstat(file, &about) == 0 && S_ISREG(about.st_mode) &&
      static_cast<uint64_t>(about.st_size) <= kDefinitionMost) {
    bytes.emplace(static_cast<size_t>(about.st_size), '\0');
    const ssize_t got = ::pread(file, bytes->data(), bytes->size(), 0);
    bytes->resize(got < 0 ? 0 : static_cast<size_t>(got));
  }
  ::close(file);
  return bytes;
}

// 0 or an errno.
int write_whole(const std::string& path, const std::string& bytes) {
  if (fault(FaultPoint::definition_file_write)) return ENOSPC;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, my_umask);
  if (file < 0) return errno;
  size_t written = 0;
  int error = 0;
  while (error == 0 && written < bytes.size()) {
    const ssize_t now = ::write(file, bytes.data() + written, bytes.size() - written);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0)
      error = now < 0 ? errno : ENOSPC;
    else
      written += static_cast<size_t>(now);
  }
  if (::close(file) != 0 && error == 0) error = errno;
  return error;
}

// DF4. Not synced: after a power loss DF3 compares every byte.
int replace_file(const TableName& name, const std::string& bytes) {
  static std::atomic<uint64_t> count{0};
  const std::string temporary =
      "./" + name.schema + "/" + std::string(kTemporaryPrefix) + std::to_string(++count) + reg_ext;
  int error = write_whole(temporary, bytes);
  if (error == 0 && ::rename(temporary.c_str(), path_of(name).c_str()) != 0) error = errno;
  if (error != 0) (void)::unlink(temporary.c_str());  // DF3 removes what is left
  return error;
}

// Once per kind of failure, not for every table of a full disk.
void report_failure(const std::string& path, int error) {
  static std::atomic<int> reported{0};
  if (reported.exchange(error) == error || error == 0) return;
  sql_print_warning(
      "STRATA: cannot write %s: %s. The table is not affected; the file is written when it can be",
      path.c_str(), std::strerror(error));
}

// What the server reads to know the engine of a table (its dd_frm_type()), with every offset
// checked: the bytes may be anything.
std::string_view engine_of(const std::string& bytes) {
  constexpr size_t kHeaderBytes = 64;
  if (bytes.size() < kHeaderBytes) return {};
  const auto* const header = reinterpret_cast<const uchar*>(bytes.data());
  if (header[0] != 0xfe || header[1] != 1 || uint4korr(header + 55) == 0) return {};
  const size_t keys =
      uint2korr(header + 14) == 0xffff ? uint4korr(header + 47) : uint2korr(header + 14);
  const size_t texts = size_t{uint2korr(header + 6)} + keys + uint2korr(header + 16);
  const auto length_at = [&](size_t at) {
    return at + 2 <= bytes.size() ? std::optional<size_t>(uint2korr(header + at)) : std::nullopt;
  };
  const std::optional<size_t> connection = length_at(texts);
  if (!connection) return {};
  const size_t engine = texts + 2 + *connection;
  const std::optional<size_t> length = length_at(engine);
  if (!length || engine + 2 + *length > bytes.size()) return {};
  return std::string_view(bytes).substr(engine + 2, *length);
}

bool is_ours(const std::string& bytes) { return engine_of(bytes) == kEngineName; }

using Names = std::set<std::pair<std::string, std::string>>;

struct Restored {
  uint64_t written = 0;
  uint64_t removed = 0;
};

// A file of another engine, a view or nothing at all, in the place of a table that the dictionary
// has. False: reported, and it is still there.
bool move_away(const std::string& path, const TableName& name, const std::string& bytes) {
  sql_print_error(
      "STRATA: %s is %s, but the database has a table of that name: the file was moved to "
      "%s/replaced",
      path.c_str(), bytes.starts_with(kViewBegins) ? "a view" : "not of engine STRATA",
      data_folder().c_str());
  return move_to_replaced(path, name.schema + "." + name.table + reg_ext);
}

// One file of a database's folder. Names that need nothing more go into `done`.
void restore_file(const TableName& name, Names* done, Restored* restored) {
  const std::string path = path_of(name);
  const std::optional<std::string> bytes = read_whole(path);
  if (!bytes) return;
  const StatusOr<engine::TableRef> table = find_table(name);
  if (!table.ok() && !is_not_found(table.status())) return;  // not known is not gone
  const bool temporary = name.table.starts_with(kTemporaryPrefix);
  if (is_ours(*bytes) || temporary) {
    if (table.ok() && !name.internal()) {
      if (*bytes == (*table)->spec().definition) done->emplace(name.schema, name.table);
    } else if (::unlink(path.c_str()) == 0) {
      ++restored->removed;
    }
    return;
  }
  if (!table.ok()) return;
  // What cannot be moved stays: it is not ours to overwrite.
  if (!move_away(path, name, *bytes)) done->emplace(name.schema, name.table);
}

// By the names of their tables.
std::vector<std::string> definition_files_of(const std::string& schema) {
  std::error_code error;
  std::vector<std::string> tables;
  for (fs::directory_iterator entry("./" + schema, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path& path = entry->path();
    if (path.extension() == reg_ext) tables.push_back(path.stem());
  }
  return tables;
}

void restore_folder(const std::string& schema, Names* done, Restored* restored) {
  for (const std::string& table : definition_files_of(schema))
    restore_file({schema, table}, done, restored);
}

}  // namespace

bool fits_a_file_name(const TableName& name) {
  return name.table.size() + std::strlen(reg_ext) <= kFileNameBytesMost;
}

bool write_definition_file(const engine::TableSpec& spec) {
  const TableName name{spec.schema, spec.name};
  const std::string path = path_of(name);
  if (read_whole(path) == spec.definition) return true;
  const int error = replace_file(name, spec.definition);
  report_failure(path, error);
  if (error == 0) return true;
  (void)::unlink(path.c_str());  // DF2; what is left is behind at most (DF1)
  errno = error;
  return false;
}

void restore_definition_file(const TableName& name) {
  const StatusOr<engine::TableRef> table = find_table(name);
  if (table.ok()) {
    (void)write_definition_file((*table)->spec());  // DF2
  } else if (is_not_found(table.status()) && has_definition_file(name)) {
    (void)::unlink(path_of(name).c_str());  // open() finds no table behind what is left (DF1)
  }
}

void remove_definition_file(const TableName& name) {
  if (has_definition_file(name)) (void)::unlink(path_of(name).c_str());
}

void remove_definition_files_of(const std::string& schema) {
  for (const std::string& table : definition_files_of(schema)) {
    const std::string path = path_of({schema, table});
    if (is_definition_file(path) || table.starts_with(kTemporaryPrefix))
      (void)::unlink(path.c_str());
  }
}

bool has_definition_file(const TableName& name) { return is_definition_file(path_of(name)); }

bool is_definition_file(const std::string& path) {
  const std::optional<std::string> bytes = read_whole(path);
  return bytes && is_ours(*bytes);
}

namespace {

// Where other servers change tables: nothing is remembered that is not used (AG1).
void remove_definition_files(const std::vector<std::string>& schemas) {
  std::set<std::pair<std::string, std::string>> tables;
  kernel->for_each_table(
      false, [&](const engine::TableSpec& spec) { tables.emplace(spec.schema, spec.name); });
  for (const std::string& schema : schemas) {
    for (const std::string& table : definition_files_of(schema)) {
      const TableName name{schema, table};
      const std::string path = path_of(name);
      const std::optional<std::string> bytes = read_whole(path);
      if (!bytes) continue;
      if (is_ours(*bytes) || table.starts_with(kTemporaryPrefix)) {
        (void)::unlink(path.c_str());
      } else if (tables.contains({schema, table})) {
        move_away(path, name, *bytes);
      }
    }
  }
}

}  // namespace

void restore_all_definition_files() {
  Names done;
  Restored restored;
  std::error_code error;
  std::vector<std::string> schemas;
  for (fs::directory_iterator entry(".", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;  // what is no folder any more holds no files
    const std::string name = entry->path().filename();
    if (name.front() != '#' && entry->is_directory(ignored)) schemas.push_back(name);
  }
  if (kernel->shares_tables()) return remove_definition_files(schemas);
  for (const std::string& schema : schemas) restore_folder(schema, &done, &restored);
  kernel->for_each_table(false, [&](const engine::TableSpec& spec) {
    if (!done.contains({spec.schema, spec.name}) && write_definition_file(spec)) ++restored.written;
  });
  if (restored.written + restored.removed > 0)
    sql_print_information(
        "STRATA: definition files brought in line with the database: %llu written, %llu removed",
        static_cast<ulonglong>(restored.written), static_cast<ulonglong>(restored.removed));
}

}  // namespace strata::glue
