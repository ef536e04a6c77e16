// Statistics of tables where several servers write: the optimiser of each is told the same.
//
// A record of the kernel's journal for each table has what all know (statistics_record.h). Say
// server 1 loads 100,000 rows. Within a second its thread adds them to the record, in a transaction
// of a few bytes. The next query on server 2 looks at the record, which it does once a second, and
// knows of 100,000 rows, of which all have changed since the last sample; so it samples some leaves
// of each index, as it would have after changes of its own, and its thread writes what it has found
// into the record. Server 1 and all others take that over at their next look.
//
//   TS1  A record is under the table's id, and is about that table as long as its space is the
//        same. DDL neither reads nor writes records: a name is no part of them, TRUNCATE makes
//        another space, and an index that a record does not know is sampled. Records of tables that
//        are gone are collected later, by any server.
//   TS2  Records are written by a thread of ours, in transactions of their own: no statement waits
//        for one (ANALYZE TABLE does, for at most kAnalyzeWaitsUs), and no table is locked.
//   TS3  An error costs no statement anything. It is counted, logged once until it has passed, and
//        whoever cannot read or write goes on with what it knows.
//   TS4  Who uses a table looks at its record, at most once kLookUs on a server.
//   TS5  Each server adds the rows that it has committed, soon if they are many. What a killed
//        server has not told is found by sampling: each server samples when it first looks at a
//        record, and every kVerifyUs, and replaces what is more than a quarter off.
//   TS6  What is written is an estimate, and no reader relies on it: older builds and clusters have
//        no records, and a record of another format is as good as none.
#pragma once

#include "mariadb/share.h"
#include "mariadb/statistics_record.h"

namespace strata::glue {

// Once the kernel is open; where one server writes: nothing.
void start_shared_statistics();
void stop_shared_statistics();  // again: nothing

// The record about this table. Nothing: there is none, or it cannot be read. Reads a page or two.
std::optional<StatisticsRecord> read_statistics(const engine::TableSpec& table);
void take_statistics(engine::Table* table, const engine::TableCounts& known);
// To be written soon.
void share_statistics(const engine::TableRef& table, Calculated found);
// Until all that was given to share_statistics() so far is written, or kAnalyzeWaitsUs have passed.
void wait_until_statistics_are_shared();

std::vector<engine::Kernel::Counter> statistics_counters();

}  // namespace strata::glue
