// errors.def, read: every error has a number, a class and texts that say what happened and what to
// do (ER1, ER2, ER5); numbers of other versions are read as something safe (ER4); ours, beyond
// Abseil's codes, are never taken for "outcome unknown" (ER6).
#include "base/status.h"

#include <gtest/gtest.h>

#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace strata {
namespace {

struct Row {
  std::string_view name;
  int number;
  ErrorClass cls;
  std::string_view cause, remedy;
  Status (*make)(std::string_view);
  bool (*is)(const Status&) noexcept;
};

const Row kRows[] = {
#define STRATA_ERROR(name, number, cls, cause, remedy) \
  {#name, number, ErrorClass::cls, cause, remedy, error_##name, is_##name},
#include "base/errors.def"
#undef STRATA_ERROR
};

TEST(Errors, NumbersAreTheirOwnAndFitTheWire) {  // ER1
  std::set<int> numbers;
  for (const Row& row : kRows) {
    EXPECT_TRUE(numbers.insert(row.number).second) << row.name;
    EXPECT_TRUE((row.number > 0 && row.number <= 16) || (row.number >= 32 && row.number < 256))
        << row.name;
  }
}

// What is on the wire since earlier versions. A line is added here with each error, none changed.
TEST(Errors, NumbersKeepTheirMeaning) {  // ER1
  const std::vector<std::pair<int, std::string_view>> kept = {{1, "interrupted"},
                                                              {2, "outcome_unknown"},
                                                              {3, "invalid_argument"},
                                                              {4, "lock_wait_timeout"},
                                                              {5, "not_found"},
                                                              {6, "duplicate_key"},
                                                              {8, "no_space"},
                                                              {9, "fenced"},
                                                              {10, "deadlock"},
                                                              {11, "out_of_range"},
                                                              {12, "definition_changed"},
                                                              {13, "internal"},
                                                              {14, "peer_down"},
                                                              {15, "corruption"},
                                                              {32, "conflict"},
                                                              {33, "wrong_database"},
                                                              {34, "withdrawn"},
                                                              {35, "busy"},
                                                              {36, "io_error"},
                                                              {37, "unsupported"},
                                                              {38, "in_use"},
                                                              {39, "timed_out"},
                                                              {40, "ended"},
                                                              {41, "lease_lost"},
                                                              {42, "no_session"},
                                                              {43, "wrong_secret"},
                                                              {44, "row_is_referenced"},
                                                              {45, "no_referenced_row"},
                                                              {46, "cascade_too_deep"},
                                                              {47, "cascaded_duplicate"},
                                                              {48, "row_changed"},
                                                              {49, "foreign_key_refused"}};
  EXPECT_EQ(kept.size(), std::size(kRows));
  for (const auto& [number, name] : kept)
    EXPECT_EQ(error_name(static_cast<Error>(number)), name) << number;
}

TEST(Errors, EachIsItselfAndNothingElse) {  // ER6
  for (const Row& made : kRows) {
    const Status status = made.make("words");
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(error_name(error_of(status)), made.name);
    EXPECT_EQ(error_class(status), made.cls) << made.name;
    EXPECT_NE(error_class(status), ErrorClass::none) << made.name;
    for (const Row& asked : kRows)
      EXPECT_EQ(asked.is(status), asked.name == made.name) << made.name << " " << asked.name;
    const Status again = with_message(status, "other words");
    EXPECT_TRUE(made.is(again)) << made.name;
    EXPECT_EQ(again.message(), "other words");
  }
  EXPECT_EQ(error_class(ok_status()), ErrorClass::none);
  EXPECT_EQ(error_of(ok_status()), Error::ok);
}

TEST(Errors, TextsSayWhatHappenedAndWhatToDo) {  // ER5
  for (const Row& row : kRows) {
    for (const std::string_view text : {row.cause, row.remedy}) {
      ASSERT_GE(text.size(), 12u) << row.name;
      EXPECT_LE(text.size(), 100u) << row.name;
      EXPECT_TRUE(std::islower(static_cast<unsigned char>(text.front()))) << row.name;
      EXPECT_NE(text.back(), '.') << row.name;
      EXPECT_EQ(text.find("read only"), std::string_view::npos) << row.name;
      EXPECT_EQ(text.find(kRemedyMark), std::string_view::npos) << row.name;
    }
    EXPECT_NE(row.cause, row.remedy) << row.name;
    EXPECT_EQ(cause_and_remedy(row.make({})),
              std::string(row.cause) + "; to do: " + std::string(row.remedy));
  }
}

TEST(Errors, AMessageMayHaveItsOwnRemedy) {  // ER5
  const Status with = error_ended("the log failed (EIO); to do: restart this server");
  EXPECT_EQ(cause_of(with), "the log failed (EIO)");
  EXPECT_EQ(remedy_of(with), "restart this server");
  EXPECT_EQ(cause_and_remedy(with), with.message());
  const Status without = error_ended("the log failed (EIO)");
  EXPECT_EQ(cause_of(without), "the log failed (EIO)");
  EXPECT_EQ(remedy_of(without), remedy_of(error_ended()));
  EXPECT_EQ(remedy_of(with_remedy(without, "look at the disk")), "look at the disk");
  EXPECT_TRUE(is_ended(with_remedy(without, "look at the disk")));
  EXPECT_EQ(with_remedy(with, "look at the disk"), with);
  const Status around = error_ended("no pages (" + std::string(with.message()) + "); to do: wait");
  EXPECT_EQ(remedy_of(around), "wait");  // of what is around it, not of the reason in it
  EXPECT_TRUE(with_remedy(ok_status(), "nothing").ok());
}

TEST(Errors, WhatAPeerSaysIsReadForWhatItMeansHere) {  // ER4, ER7
  for (const Row& row : kRows) {
    const Status read = status_from_wire(wire_number(row.make("words")), "words");
    EXPECT_EQ(read.message(), "words");
    EXPECT_EQ(error_name(error_of(read)), row.name == "ended" ? "peer_down" : row.name);
  }
  int unknown = 0;
  for (int number = 1; number < 256; ++number) {
    const Status read = status_from_wire(static_cast<uint8_t>(number), "their words");
    EXPECT_FALSE(read.ok());
    if (error_name(static_cast<Error>(number)) != "unknown") continue;
    ++unknown;
    EXPECT_TRUE(is_outcome_unknown(read)) << number;
    EXPECT_NE(read.message().find("their words"), absl::string_view::npos) << number;
    EXPECT_FALSE(ends_right(read) || may_pass(read)) << number;
  }
  EXPECT_EQ(unknown, 255 - static_cast<int>(std::size(kRows)));
}

// ER3. These are what generic code goes by; a change of one of them changes what loops do.
TEST(Errors, TheClassSaysWhoTriesAgain) {
  for (const Status& status : {error_peer_down(), error_busy(), error_timed_out(),
                               error_lease_lost(), error_no_session()}) {
    EXPECT_TRUE(may_pass(status)) << status;
    EXPECT_TRUE(may_be_repeated(status)) << status;
    EXPECT_FALSE(ends_right(status)) << status;
  }
  EXPECT_FALSE(may_pass(error_outcome_unknown()));
  EXPECT_TRUE(may_be_repeated(error_outcome_unknown()));
  for (const Status& status : {error_fenced(), error_ended(), error_withdrawn()}) {
    EXPECT_TRUE(ends_right(status)) << status;
    EXPECT_FALSE(may_be_repeated(status)) << status;
  }
  for (const Status& status : {ok_status(), error_conflict(), error_no_space(), error_io_error(),
                               error_corruption(), error_wrong_database(), error_wrong_secret(),
                               error_in_use(), error_lock_wait_timeout(), error_deadlock()}) {
    EXPECT_FALSE(may_be_repeated(status)) << status;
    EXPECT_FALSE(ends_right(status)) << status;
  }
}

}  // namespace
}  // namespace strata
