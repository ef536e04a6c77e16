// A kernel with tables that refer to each other, on a disk that can fail, and one session at it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fault.h"
#include "engine/testing/failing_disk.h"
#include "engine/testing/family.h"

namespace strata::engine::testing {

class FamilyTest : public ::testing::Test {
 protected:
  void SetUp() override { start(); }
  void TearDown() override { disarm_faults(); }
  void start() {
    KernelOptions options = options_on(&disk_);
    options.codecs = &codecs_;
    auto opened = Kernel::open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernel_ = std::move(opened).value();
    session_ = kernel_->new_session();
  }
  void crash(uint64_t seed) {
    session_.reset();
    sim_->crash(seed);
    kernel_.reset();
    start();
  }
  Status ddl(const std::function<Status(Session*)>& body, bool checks = true) {
    const auto session = kernel_->new_session();
    session->set_foreign_key_checks(checks);
    session->set_lock_wait_timeout_us(ddl_timeout_us_);
    session->begin(Isolation::kReadCommitted);
    const Status done = body(session.get());
    if (!done.ok()) {
      EXPECT_TRUE(session->rollback().ok());
      return done;
    }
    return session->commit();
  }
  Status make(const std::string& name, std::vector<ForeignKeySpec> keys = {}, bool checks = true,
              bool descending = false) {
    TableSpec spec = family_spec(name, descending);
    spec.foreign_keys = std::move(keys);
    return ddl([&](Session* s) { return s->create_table(spec, nullptr); }, checks);
  }
  TableRef open(const std::string& name) {
    auto table = session_->open_table("test", name);
    EXPECT_TRUE(table.ok()) << name << ": " << table.status();
    return table.ok() ? *table : nullptr;
  }
  Status in_one(const std::function<Status(Session*)>& body,
                Isolation isolation = Isolation::kRepeatableRead) {
    session_->begin(isolation);
    const Status done = body(session_.get());
    EXPECT_TRUE(session_->commit().ok());
    return done;
  }
  Status put(const std::string& table, const Member& m) {
    return in_one([&](Session* s) { return insert(s, open(table), m); });
  }
  Status change(const std::string& table, const Member& from, const Member& to) {
    return in_one([&](Session* s) { return update(s, open(table), from, to); });
  }
  Status take(const std::string& table, const Member& m) {
    return in_one([&](Session* s) { return remove(s, open(table), m); });
  }
  Members all(const std::string& name) {
    session_->begin(Isolation::kRepeatableRead);
    auto rows = members(session_.get(), open(name));
    EXPECT_TRUE(rows.ok()) << rows.status();
    EXPECT_TRUE(session_->commit().ok());
    expect_whole(kernel_.get(), open(name));
    return rows.ok() ? *rows : Members{};
  }

  FamilyCodecs codecs_;
  uint64_t ddl_timeout_us_ = 50'000'000;
  std::unique_ptr<SimFileSystem> sim_ = make_sim_file_system();
  FailingDisk disk_{sim_.get()};
  std::unique_ptr<Kernel> kernel_;
  std::unique_ptr<Session> session_;
};

}  // namespace strata::engine::testing
