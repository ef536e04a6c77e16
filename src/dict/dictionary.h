// The dictionary on disk: two trees in the system space, changed by ordinary transactions, so that
// DDL is atomic and recovered like any other change.
//
//   DI1  System space: page 2 is the pending-delete list (txn/trx_system.h), the header slots hold
//        the root pages of the trees and the id counters. Ids are never given out twice: the
//        counter's change is earlier in the log than any use; that of a space id, whose file is
//        made at once, is durable.
//   DI2  tables tree: schema \0 name -> TableSpec (outside the row in an overflow chain when
//        large). journal tree: opaque key -> value, for the glue's DDL recovery.
//   DI3  Every call works inside the caller's transaction; nothing is visible to others before it
//        commits.
// Thread-safe as far as the transactions are different.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"
#include "dict/table_spec.h"
#include "row/row_store.h"

namespace strata {

class Dictionary {
 public:
  explicit Dictionary(RowContext* context) : context_(context) {}

  // First start: makes the system space's trees. The space itself exists.
  Status initialise();
  Status open();  // finds the roots

  Status put_table(Trx* trx, const TableSpec& spec);       // insert; kAlreadyExists
  Status replace_table(Trx* trx, const TableSpec& spec);   // same key; kNotFound
  Status erase_table(Trx* trx, Bytes schema, Bytes name);  // kNotFound
  Status put_journal(Trx* trx, Bytes key, Bytes value);    // insert or replace
  Status erase_journal(Trx* trx, Bytes key);               // OK when absent
  // As committed; *changed_at: when its definition was changed last. For whoever holds a lock on
  // the name, so that nobody else is changing it. kNotFound. kUnavailable: a change is being
  // undone.
  StatusOr<TableSpec> read_table(Bytes schema, Bytes name, Cts* changed_at);
  // Everything committed, in key order.
  Status for_each_table(const std::function<Status(TableSpec)>& visit);
  Status for_each_journal(Bytes prefix, const std::function<Status(Bytes key, Bytes value)>& visit);

  StatusOr<uint64_t> new_table_id();
  StatusOr<SpaceId> new_space_id();  // blocks for the log once in many calls
  StatusOr<IndexId> new_index_ids(uint32_t count);

 private:
  StatusOr<uint64_t> new_id(HeaderSlot slot, uint64_t count, Lsn* end);  // id_mutex_ held
  Status put(Trx* trx, TreeId tree, Bytes key, Bytes value, bool replace);
  Status erase(Trx* trx, TreeId tree, Bytes key);
  // What begins with `prefix`.
  Status scan(TreeId tree, Bytes prefix,
              const std::function<Status(Bytes key, Bytes value)>& visit);
  Status load_value(Bytes payload, std::string* out);

  RowContext* context_;
  TreeId tables_;
  TreeId journal_;
  Mutex id_mutex_{LatchRank::kDictionary};
  uint32_t next_space_ STRATA_GUARDED_BY(id_mutex_) =
      0;  // durably reserved, not yet given out: [next_space_, spaces_end_)
  uint32_t spaces_end_ STRATA_GUARDED_BY(id_mutex_) = 0;
};

}  // namespace strata
