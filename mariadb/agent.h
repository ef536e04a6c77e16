// What this server remembers of tables whose definitions other servers change as well: how it is
// forgotten before the name of a table is given up (engine::TableUsers, MW15).
//
// The server keeps a definition (TABLE_SHARE), open tables behind it, and the file <table>.frm. All
// of it is used under a metadata lock on the table's name, and that is what makes it simple: who
// has the exclusive one is alone with the table.
//
//   AG1  A name is given up only by whoever has the exclusive metadata lock on it, and then nothing
//        of the table is left here: no definition, no open table, no file. So a statement that has
//        any metadata lock on a table has the definition that all servers have, until it gives the
//        metadata lock back.
//   AG2  The metadata lock is waited for in slices (kSliceUs), for the time that the caller has. In
//        between, statements that queue behind go on: what this waits for may wait for them.
//   AG3  A DDL statement of this server that has the exclusive metadata lock itself, and waits for
//        the name behind another server, is not waited for. The name is given up under its metadata
//        lock, which it keeps for as long as that takes (has_waited()). Not under LOCK TABLES:
//        there one of the two waits in vain. Its own open table is stale then: it looks at that
//        once it has the name, and so does whoever uses one that is left (AG4). What the server
//        remembers goes a little later, in a thread of ours.
//   AG4  Nobody uses a table that is stale: open() and discover_check_version() have the server
//        read the definition anew; external_lock() and start_stmt() fail the statement with "Table
//        definition has changed".
//   AG5  ALTER, CREATE INDEX, DROP INDEX and OPTIMIZE lock the name before they look at the first
//        row, under the exclusive metadata lock, and until their change is published or undone
//        (AlterHold in connection.h): nobody changes rows elsewhere that are being copied.
//   AG6  Once the server has ended its connections, or the plugin stops, nobody uses definitions of
//        ours; names are given up without asking the server, which no thread can be one of soon.
//   AG7  The right to change rows (engine::right_to_change()) is given up while nobody has a
//        metadata lock to change any (MDL_SHARED_READ_ONLY is had): readers go on. Who changes rows
//        later asks for the right first, with its metadata lock (ha_strata::ask_to_change()).
#pragma once

#include <map>
#include <set>
#include <string>

#include "engine/kernel_seams.h"
#include "mariadb/path.h"
#include "mariadb/server.h"

namespace strata::glue {

// For KernelSeams. Valid for as long as the process lives.
engine::TableUsers* table_users();

// AG3, of a statement that has the exclusive metadata locks on these names (by table_key()), and
// waits for one after the other.
class GivesUpMeanwhile {
 public:
  explicit GivesUpMeanwhile(const std::map<std::string, TableName>& names) {
    for (const auto& [key, name] : names) waited_for_.insert(key);
    for (const std::string& key : waited_for_) table_users()->begins_to_wait(key);
  }
  ~GivesUpMeanwhile() {
    for (const std::string& key : waited_for_) table_users()->has_waited(key);
  }
  GivesUpMeanwhile(const GivesUpMeanwhile&) = delete;
  void has(const std::string& key) {
    table_users()->has_waited(key);
    waited_for_.erase(key);
  }

 private:
  std::set<std::string> waited_for_;
};

// The thread of AG3. After start_agent(), stop_agent() before the kernel goes.
void start_agent();
void stop_agent();  // AG6

}  // namespace strata::glue
