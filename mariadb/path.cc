#include "mariadb/path.h"

#include "mariadb/cluster.h"

namespace strata::glue {
namespace {

constexpr std::string_view kPlaceBegins = "#n";

std::string place_suffix() {
  const NodeId place = place_among_several();
  return place.value == 0 ? std::string() : std::string(kPlaceBegins) + std::to_string(place.value);
}

TableName with_place(TableName name) {
  if (name.internal()) name.table += place_suffix();
  return name;
}

}  // namespace

bool TableName::is_ours() const { return !internal() || table.ends_with(place_suffix()); }

std::string TableName::file_name() const {
  const size_t place = internal() ? table.rfind(kPlaceBegins) : std::string::npos;
  return table.substr(0, place);
}

TableName parse_path(const char* path) {
  const std::string_view p(path);
  const size_t table = p.rfind('/');
  if (table == std::string_view::npos) return with_place({"", std::string(p)});
  const size_t schema = table == 0 ? std::string_view::npos : p.rfind('/', table - 1);
  const size_t begin = schema == std::string_view::npos ? 0 : schema + 1;
  return with_place(
      {std::string(p.substr(begin, table - begin)), std::string(p.substr(table + 1))});
}

TableName from_plain_names(const char* schema, const char* table) {
  char encoded_schema[FN_REFLEN];
  char encoded_table[FN_REFLEN];
  tablename_to_filename(schema, encoded_schema, sizeof encoded_schema);
  tablename_to_filename(table, encoded_table, sizeof encoded_table);
  return {encoded_schema, encoded_table};
}

std::string schema_of_folder(const char* path) {
  std::string_view p(path);
  while (!p.empty() && p.back() == '/') p.remove_suffix(1);
  const size_t slash = p.rfind('/');
  return std::string(slash == std::string_view::npos ? p : p.substr(slash + 1));
}

}  // namespace strata::glue
