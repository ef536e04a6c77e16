// What the handler tells of foreign keys (FG2).
#include <algorithm>
#include <tuple>
#include <vector>

#include "mariadb/foreign_keys.h"
#include "mariadb/ha_strata.h"

namespace strata::glue {
namespace {

bool changes_rows(enum_fk_option option) {
  return option == FK_OPTION_CASCADE || option == FK_OPTION_SET_NULL;
}

// FG4: the server looks for an error, not at what these functions return.
template <typename Body>
int all_or_error(Body&& body) noexcept {
  const int failed = guarded(body);
  if (failed != 0 && !current_thd->is_error()) my_error(ER_OUT_OF_RESOURCES, MYF(0));
  return failed;
}

// The server may walk a list before it looks for the error, and its push_back() leaves one without
// an end when there is no memory.
template <typename Body>
int list_or_error(List<FOREIGN_KEY_INFO>* list, Body&& body) noexcept {
  const int failed = all_or_error(body);
  if (failed != 0) list->empty();
  return failed;
}

}  // namespace

int ha_strata::get_foreign_key_list(THD* thd, List<FOREIGN_KEY_INFO>* list) {
  return list_or_error(list, [&] {
    const engine::TableReferences* const now = table_->references();
    if (now == nullptr) return 0;
    const std::unique_ptr<engine::Session> own = kernel->new_session();
    for (const engine::ForeignKeySpec& key : now->foreign_keys) {
      FOREIGN_KEY_INFO* const info = foreign_key_info(thd, table_->spec(), key, own.get());
      if (list->push_back(info, thd->mem_root)) return HA_ERR_OUT_OF_MEM;
    }
    return 0;
  });
}

int ha_strata::get_parent_foreign_key_list(THD* thd, List<FOREIGN_KEY_INFO>* list) {
  return list_or_error(list, [&] {
    const engine::TableReferences* const now = table_->references();
    if (now == nullptr) return 0;
    const engine::TableSpec& own_spec = table_->spec();
    const std::string own_name = table_key(own_spec.schema, own_spec.name);
    const std::unique_ptr<engine::Session> own = kernel->new_session();
    // The server asks with the statement's event which children it has to lock for changes, of
    // every table that it gets to. Where this one is reached by a foreign key, a DELETE may have
    // become an update, here (SET NULL) or on the way here, so children that follow updates are
    // among them.
    const TABLE_LIST* const place = table->pos_in_table_list;
    const auto updates = [](const engine::ForeignKeySpec& key) {
      return key.on_delete == engine::ReferentialAction::kSetNull ||
             key.on_update == engine::ReferentialAction::kSetNull ||
             key.on_update == engine::ReferentialAction::kCascade;
    };
    const bool may_be_update =
        place != nullptr && place->prelocking_placeholder == TABLE_LIST::PRELOCK_FK &&
        std::any_of(now->foreign_keys.begin(), now->foreign_keys.end(), updates);
    // By the names of the keys, in which order they are followed, too.
    struct Child {
      engine::TableRef table;
      engine::ForeignKeySpec key;
    };
    std::vector<Child> children;
    const auto add = [&](const engine::TableRef& child) {
      const engine::TableReferences* const theirs = child->references();
      if (theirs == nullptr) return;
      for (const engine::ForeignKeySpec& key : theirs->foreign_keys)
        if (key.parent == own_name) children.push_back({child, key});
    };
    add(table_);
    for (const std::string& name : now->children) {
      const size_t end = name.find('\0');
      const StatusOr<engine::TableRef> child =
          own->open_table(Bytes(name).substr(0, end), Bytes(name).substr(end + 1));
      if (child.ok()) add(*child);
    }
    std::sort(children.begin(), children.end(), [](const Child& a, const Child& b) {
      return std::tie(a.table->spec().schema, a.key.name) <
             std::tie(b.table->spec().schema, b.key.name);
    });
    for (const Child& child : children) {
      FOREIGN_KEY_INFO* const info =
          foreign_key_info(thd, child.table->spec(), child.key, own.get());
      if (list->push_back(info, thd->mem_root)) return HA_ERR_OUT_OF_MEM;
      if (may_be_update && changes_rows(info->update_method))
        info->delete_method = info->update_method;
    }
    return 0;
  });
}

bool ha_strata::referenced_by_foreign_key() const noexcept {
  const engine::TableReferences* const now = table_ == nullptr ? nullptr : table_->references();
  if (now == nullptr) return false;
  if (!now->children.empty()) return true;
  const engine::TableSpec& spec = table_->spec();
  return std::any_of(
      now->foreign_keys.begin(), now->foreign_keys.end(), [&](const engine::ForeignKeySpec& key) {
        return key.parent.size() == spec.schema.size() + 1 + spec.name.size() &&
               key.parent.compare(0, spec.schema.size(), spec.schema) == 0 &&
               key.parent.compare(spec.schema.size() + 1, std::string::npos, spec.name) == 0;
      });
}

char* ha_strata::get_foreign_key_create_info() {
  char* out = nullptr;
  // Null, which the server takes for none; the error that was reported fails the statement.
  (void)all_or_error([&] {
    const engine::TableReferences* const now = table_->references();
    if (now == nullptr || now->foreign_keys.empty()) return 0;
    std::string text;
    for (const engine::ForeignKeySpec& key : now->foreign_keys)
      text += ",\n  " + foreign_key_text(ha_thd(), table_->spec().schema, key);
    out = my_strdup(PSI_NOT_INSTRUMENTED, text.c_str(), MYF(0));
    return out == nullptr ? HA_ERR_OUT_OF_MEM : 0;
  });
  return out;
}

void ha_strata::free_foreign_key_create_info(char* text) { my_free(text); }

bool ha_strata::can_switch_engines() {
  const engine::TableReferences* const now = table_->references();
  return now == nullptr || (now->foreign_keys.empty() && now->children.empty());
}

bool ha_strata::is_fk_defined_on_table_or_index(uint index) {
  const engine::TableReferences* const now = table_->references();
  if (now == nullptr) return false;
  if (index == MAX_KEY) return !now->foreign_keys.empty() || referenced_by_foreign_key();
  if (index >= table->s->keys) return false;
  const KEY& key = table->key_info[index];
  const auto begins_with = [&](const std::vector<std::string>& columns) {
    if (columns.size() > key.user_defined_key_parts) return false;
    for (size_t i = 0; i < columns.size(); ++i) {
      const Field* const field = table->field[key.key_part[i].fieldnr - 1];
      if (my_strcasecmp(system_charset_info, field->field_name.str, columns[i].c_str()) != 0)
        return false;
    }
    return true;
  };
  return std::any_of(now->foreign_keys.begin(), now->foreign_keys.end(),
                     [&](const auto& foreign) { return begins_with(foreign.columns); });
}

bool ha_strata::get_foreign_dup_key(char* table_name, uint table_bytes, char* index,
                                    uint index_bytes) {
  return last_cascaded_duplicate(table_name, table_bytes, index, index_bytes);
}

}  // namespace strata::glue
