#include "mariadb/object_names.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "mariadb/metadata_lock.h"
#include "mariadb/paths_of_server.h"

namespace strata::glue {
namespace {

namespace fs = std::filesystem;

constexpr char kView = 'v', kOptions = 'o', kTriggers = 't';
constexpr std::string_view kViewBegins = "TYPE=VIEW";
constexpr std::string_view kTriggerTable = "\ntrigger_table=";
constexpr off_t kFileMost = 64 << 20;  // more is none of these

// "object/t/schema/table/": no name is the beginning of another one's key.
std::string key_of(char kind, const std::string& schema, const std::string& name) {
  std::string key(kObjects);
  key += kind;
  return key += '/' + schema + '/' + (name.empty() ? name : name + '/');
}

char kind_of(std::string_view key) {
  return key.starts_with(kObjects) && key.size() > kObjects.size() ? key[kObjects.size()] : '\0';
}

std::string folder_of(const std::string& schema) { return mysql_real_data_home + schema + '/'; }

Status io_error(const std::string& path, int error) {
  return error_io_error(path + ": " + std::strerror(error));
}

// Empty: it is not there.
StatusOr<std::string> read_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::string();
    return io_error(path, errno);
  }
  std::string bytes;
  int error = 0;
  struct stat about {};
  if (::fstat(file, &about) != 0) {
    error = errno;
  } else if (!S_ISREG(about.st_mode) || about.st_size > kFileMost) {
    error = EFBIG;
  } else {
    bytes.resize(static_cast<size_t>(about.st_size));
    const ssize_t got = ::pread(file, bytes.data(), bytes.size(), 0);
    if (got < 0) error = errno;
    bytes.resize(got < 0 ? 0 : static_cast<size_t>(got));
  }
  ::close(file);
  if (error != 0) return io_error(path, error);
  return bytes;
}

Status remove_file(const std::string& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT || errno == ENOTDIR) return ok_status();
  return io_error(path, errno);
}

// Names of files with this ending, without it. Nothing: the folder is not there.
StatusOr<std::set<std::string>> list_files(const std::string& schema, const char* extension) {
  std::set<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder_of(schema), error);
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == extension && !entry->path().stem().string().starts_with('#'))
      names.insert(entry->path().stem().string());
  if (error && error != std::errc::no_such_file_or_directory)
    return io_error(folder_of(schema), error.value());
  return names;
}

// As the server escapes values in such files.
std::string unescape(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      plain += text[i];
      continue;
    }
    const char next = text[++i];
    plain += next == 'n' ? '\n' : next == '0' ? '\0' : next == 'z' ? '\x1a' : next;
  }
  return plain;
}

// "TYPE=TRIGGERNAME\ntrigger_table=t\n"
bool is_trigger_of(const std::string& file, const std::string& plain_table) {
  const size_t at = file.find(kTriggerTable);
  if (at == std::string::npos) return false;
  const size_t begins = at + kTriggerTable.size();
  return unescape(std::string_view(file).substr(begins, file.find('\n', begins) - begins)) ==
         plain_table;
}

// Whether the file with the texts of a table's triggers has one of that name. A server that is
// killed in CREATE TRIGGER may leave the name's file alone. Names that need quotes are believed.
bool has_text_of(const std::string& texts, const std::string& plain_trigger) {
  const auto simple = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  return !std::all_of(plain_trigger.begin(), plain_trigger.end(), simple) ||
         texts.find(plain_trigger) != std::string::npos;
}

using Files = std::vector<std::pair<std::string, std::string>>;  // name, contents

std::string encode_files(const Files& files) {
  std::string value;
  for (const auto& [name, contents] : files) {
    append_bytes32(&value, name);
    append_bytes32(&value, contents);
  }
  return value;
}

// The names come from another server: none may lead out of the folder.
StatusOr<Files> decode_files(const std::string& value) {
  Files files;
  ByteReader reader{Bytes(value)};
  while (reader.ok() && reader.remaining() != 0) {
    std::string name(reader.bytes32());
    std::string contents(reader.bytes32());
    if (name.empty() || name.find('/') != std::string::npos ||
        !(name.ends_with(".TRG") || name.ends_with(".TRN")))
      return error_corruption("a row of triggers names a file '" + name + "'");
    files.emplace_back(std::move(name), std::move(contents));
  }
  if (!reader.ok()) return error_corruption("a row of triggers is cut off");
  return files;
}

// .TRG first: without it the server sees no trigger.
StatusOr<std::string> read_triggers(const TableName& table) {
  const std::string folder = folder_of(table.schema);
  Files files;
  STRATA_ASSIGN_OR_RETURN(std::string all, read_file(folder + table.table + ".TRG"));
  if (all.empty()) return std::string();
  files.emplace_back(table.table + ".TRG", all);
  const std::string plain = plain_name(table.table);
  STRATA_ASSIGN_OR_RETURN(const std::set<std::string> names, list_files(table.schema, ".TRN"));
  for (const std::string& name : names) {
    STRATA_ASSIGN_OR_RETURN(std::string one, read_file(folder + name + ".TRN"));
    if (is_trigger_of(one, plain) && has_text_of(all, plain_name(name)))
      files.emplace_back(name + ".TRN", std::move(one));
  }
  return encode_files(files);
}

// Names of triggers come before the file that has their texts, and go after it.
Status write_triggers(const TableName& table, const std::string& before, const std::string& now) {
  const std::string folder = folder_of(table.schema);
  STRATA_ASSIGN_OR_RETURN(const Files old, decode_files(before));
  STRATA_ASSIGN_OR_RETURN(const Files files, decode_files(now));
  std::set<std::string> kept;
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    kept.insert(file->first);
    STRATA_RETURN_IF_ERROR(replace_object_file(folder + file->first, file->second));
  }
  for (const auto& [name, contents] : old)
    if (!kept.contains(name)) STRATA_RETURN_IF_ERROR(remove_file(folder + name));
  return ok_status();
}

Status write_view(const TableName& view, const std::string& before, const std::string& now) {
  const std::string path = folder_of(view.schema) + view.table + ".frm";
  if (before.empty()) {
    STRATA_ASSIGN_OR_RETURN(const std::string there, read_file(path));
    if (!there.empty() && !now.empty())
      return error_duplicate_key(path + " is a table of this server alone");
    if (now.empty()) return ok_status();
  }
  return now.empty() ? remove_file(path) : replace_object_file(path, now);
}

}  // namespace

std::string view_key(const std::string& schema, const std::string& view) {
  return key_of(kView, schema, view);
}
std::string options_key(const std::string& schema) {
  return key_of(kOptions, schema, std::string());
}
std::string triggers_key(const TableName& table) {
  return key_of(kTriggers, table.schema, table.table);
}
std::string triggers_prefix(const std::string& schema) {
  return key_of(kTriggers, schema, std::string());
}
bool is_of_options(std::string_view key) { return kind_of(key) == kOptions; }
bool is_of_triggers(std::string_view key) { return kind_of(key) == kTriggers; }

TableName table_of(std::string_view key) {
  if (kind_of(key) == '\0') return {};
  const std::string_view names = key.substr(std::min(key.size(), kObjects.size() + 2));
  const size_t end = names.find('/');
  if (end == std::string_view::npos) return {};
  const std::string_view name = names.substr(end + 1);
  return {std::string(names.substr(0, end)), std::string(name.substr(0, name.find('/')))};
}

StatusOr<std::string> read_object(const std::string& key) {
  const TableName name = table_of(key);
  switch (kind_of(key)) {
    case kOptions:
      return read_file(folder_of(name.schema) + std::string(kOptionsFile));
    case kTriggers:
      return read_triggers(name);
    case kView: {
      STRATA_ASSIGN_OR_RETURN(std::string file,
                              read_file(folder_of(name.schema) + name.table + ".frm"));
      return file.starts_with(kViewBegins) ? std::move(file) : std::string();
    }
    default:
      return error_corruption("a row of objects has the key '" + key + "'");
  }
}

Status list_triggers(const std::string& schema, std::set<std::string>* keys) {
  STRATA_ASSIGN_OR_RETURN(const std::set<std::string> names, list_files(schema, ".TRG"));
  for (const std::string& name : names) keys->insert(triggers_key({schema, name}));
  return ok_status();
}

Status remove_names_without_triggers(const std::string& schema) {
  STRATA_ASSIGN_OR_RETURN(const std::set<std::string> tables, list_files(schema, ".TRG"));
  STRATA_ASSIGN_OR_RETURN(const std::set<std::string> names, list_files(schema, ".TRN"));
  for (const std::string& name : names) {
    const std::string path = folder_of(schema) + name + ".TRN";
    STRATA_ASSIGN_OR_RETURN(const std::string one, read_file(path));
    const bool used = std::any_of(tables.begin(), tables.end(), [&](const std::string& table) {
      return is_trigger_of(one, plain_name(table));
    });
    if (!used) STRATA_RETURN_IF_ERROR(remove_file(path));
  }
  return ok_status();
}

Status list_objects(std::set<std::string>* keys) {
  std::error_code error;
  fs::directory_iterator entry(mysql_real_data_home, error);
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    const std::string schema = entry->path().filename();
    if (!is_database_folder(schema) || !entry->is_directory(ignored)) continue;
    keys->insert(options_key(schema));
    STRATA_ASSIGN_OR_RETURN(const std::set<std::string> views, list_files(schema, ".frm"));
    for (const std::string& view : views) keys->insert(view_key(schema, view));
    STRATA_RETURN_IF_ERROR(list_triggers(schema, keys));
  }
  return error ? io_error(mysql_real_data_home, error.value()) : ok_status();
}

Status write_object(const std::string& key, const std::string& before, const std::string& now) {
  const TableName name = table_of(key);
  if (name.schema.empty() || !is_database_folder(name.schema))
    return error_corruption("a row of objects has the key '" + key + "'");
  if (!now.empty() && ::access(folder_of(name.schema).c_str(), F_OK) != 0) return error_not_found();
  switch (kind_of(key)) {
    case kOptions: {
      const std::string path = folder_of(name.schema) + std::string(kOptionsFile);
      return now.empty() ? remove_file(path) : replace_object_file(path, now);
    }
    case kTriggers:
      return write_triggers(name, before, now);
    default:
      return write_view(name, before, now);
  }
}

Status replace_object_file(const std::string& path, const std::string& bytes) {
  static std::atomic<uint64_t> count{0};
  const std::string temporary = path.substr(0, path.rfind('/') + 1) + "#sql-strata-object-" +
                                std::to_string(++count) + ".tmp";
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, my_umask);
  if (file < 0) return errno == ENOENT ? error_not_found() : io_error(temporary, errno);
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
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return ok_status();
  (void)::unlink(temporary.c_str());
  return io_error(path, error);
}

}  // namespace strata::glue
