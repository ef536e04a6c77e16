// The logs of several nodes, merged by llsn and replayed on nothing: what several writers rest on
// (K7, K8). The logs must begin with the database and be complete.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "pagefile/page_source.h"
#include "redo/redo.h"
#include "wal/log_reader.h"

namespace strata::engine::testing {

struct Replayed {
  std::map<PageId, std::vector<char>> pages;
  uint64_t groups = 0;
};

// A section whose predecessor has not been seen yet would be a gap. Of spaces that are gone there
// may be some: each node leaves such a space by itself, and forgets what it has not written.
inline Replayed replay_merged(const std::vector<LogSink*>& sinks,
                              const std::function<bool(uint32_t space)>& is_gone = nullptr) {
  Replayed out;
  std::multimap<uint64_t, std::string> groups;  // llsn -> group bytes; small enough to keep
  for (LogSink* sink : sinks) {
    LogReader reader(sink, Lsn{4096});
    redo::GroupView group;
    for (;;) {
      auto more = reader.next(&group);
      EXPECT_TRUE(more.ok()) << more.status();
      if (!more.ok() || !*more) break;
      std::string copy(reinterpret_cast<const char*>(&group.header), sizeof group.header);
      copy.append(group.body);
      groups.emplace(group.header.llsn, std::move(copy));
    }
  }
  for (const auto& [llsn, bytes] : groups) {
    redo::GroupView group;
    std::memcpy(&group.header, bytes.data(), sizeof group.header);
    group.body = Bytes(bytes).substr(sizeof group.header);
    const Status status =
        redo::for_each_section(group, [&](const redo::SectionView& section) -> Status {
          if (is_gone && is_gone(section.page_id.space)) return ok_status();
          auto& page = out.pages[section.page_id];
          if (page.empty()) page.resize(kPageBytes, 0);
          auto applied = redo::apply_section(page.data(), Llsn{group.header.llsn}, section);
          if (!applied.ok()) return applied.status();
          if (*applied != redo::Applied::kApplied)
            return error_corruption(
                std::string(*applied == redo::Applied::kGap ? "gap" : "repetition") +
                " in the chain of page " + std::to_string(section.page_id.space) + ":" +
                std::to_string(section.page_id.number) + ": llsn " +
                std::to_string(header_of(page.data())->llsn) + ", then a change of llsn " +
                std::to_string(section.prev_llsn.value) + " to " +
                std::to_string(group.header.llsn) + " by node " +
                std::to_string(group.header.node) + " at its log position " +
                std::to_string(group.header.lsn));
          return ok_status();
        });
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) break;
    ++out.groups;
  }
  return out;
}

// Every page is stored as the logs make it. Pages of spaces that are gone, or about to go
// (`dropped`), are left out.
inline void expect_stored(PageSource* source, const Replayed& replayed,
                          const std::set<uint32_t>& dropped = {}) {
  std::vector<char> stored(kPageBytes);
  for (const auto& [id, page] : replayed.pages) {
    const auto exists = source->space_exists(SpaceId{id.space});
    ASSERT_TRUE(exists.ok());
    if (!*exists || dropped.contains(id.space)) continue;
    ASSERT_TRUE(source->read(id, Llsn{}, stored.data()).ok()) << id.space << ":" << id.number;
    EXPECT_EQ(std::memcmp(page.data() + 4, stored.data() + 4, kPageBytes - 4), 0)
        << "page " << id.space << ":" << id.number << " of type "
        << int{header_of(page.data())->type};
  }
}

}  // namespace strata::engine::testing
