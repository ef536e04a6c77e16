// Table discovery: the dictionary is the only truth about which tables exist and how they look. A
// server that may not answer (K13) says so, and not that there is no such table.
#include "mariadb/cluster.h"
#include "mariadb/ddl.h"
#include "mariadb/error_map.h"

namespace strata::glue {
namespace {

// Schemas that never hold tables of ours.
bool is_server_schema(const char* schema) {
  for (const char* const name : {"sys", "performance_schema", "information_schema"}) {
    if (my_strcasecmp(system_charset_info, schema, name) == 0) return true;
  }
  return false;
}

// Reports why nothing can be told. Nothing is what the server takes for "go on with other engines".
bool must_be_silent(const Status& status) {
  if (status.ok() || is_not_found(status)) return false;
  tell_client(status);
  return true;
}

}  // namespace

int discover_table(handlerton*, THD* thd, TABLE_SHARE* share) {
  return guarded([&]() -> int {
    const StatusOr<engine::TableRef> table =
        find_table(from_plain_names(share->db.str, share->table_name.str));
    if (must_be_silent(table.ok() ? may_answer() : table.status()))
      return HA_ERR_GENERIC;  // the server adds nothing to what was reported
    if (!table.ok()) return HA_ERR_NO_SUCH_TABLE;
    const std::string& definition = (*table)->spec().definition;
    return share->init_from_binary_frm_image(
        thd, false, reinterpret_cast<const uchar*>(definition.data()), definition.size());
  });
}

int discover_table_existence(handlerton*, const char* schema, const char* table) {
  bool exists = false;
  (void)guarded([&] {
    if (is_server_schema(schema)) return 0;
    const TableName name = from_plain_names(schema, table);
    exists = kernel->table_exists(name.schema, name.table);
    // There is no third answer: with the error reported the statement fails in either case.
    if (must_be_silent(may_answer())) exists = true;
    return 0;
  });
  return exists ? 1 : 0;
}

int discover_table_names(handlerton*, LEX_CSTRING* schema, MY_DIR*,
                         handlerton::discovered_list* result) {
  return guarded([&] {
    if (is_server_schema(schema->str)) return 0;
    char encoded[FN_REFLEN];
    tablename_to_filename(schema->str, encoded, sizeof encoded);
    const std::string_view wanted(encoded);
    bool failed = false;
    kernel->for_each_table(false, [&](const engine::TableSpec& spec) {
      if (!failed && spec.schema == wanted) failed = result->add_file(spec.name.c_str());
    });
    return failed || must_be_silent(may_answer()) ? 1 : 0;
  });
}

}  // namespace strata::glue
