#include "mariadb/path.h"

namespace strata::glue {

TableName parse_path(const char* path) {
  const std::string_view p(path);
  const size_t table = p.rfind('/');
  if (table == std::string_view::npos) return {"", std::string(p)};
  const size_t schema = table == 0 ? std::string_view::npos : p.rfind('/', table - 1);
  const size_t begin = schema == std::string_view::npos ? 0 : schema + 1;
  return {std::string(p.substr(begin, table - begin)), std::string(p.substr(table + 1))};
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
