// The memory node's half of pages for tests in real time: calls are calls of functions, and what it
// has to say to a server is said in the thread that made it say so, without its mutex. A thread of
// its own writes to storage and asks again.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/aligned.h"
#include "base/clock.h"
#include "clients/fusion/fusion_pages.h"
#include "fusion/pages/pages.h"
#include "pagefile/page_source.h"
#include "transport/regions/region.h"

namespace strata::sim {

using clients::FusionPages;
using clients::PageService;
using clients::PageSlots;
using fusion::Pages;

class PagesNode {
 public:
  PagesNode(const fusion::PagesOptions& options, Epoch epoch,
            std::shared_ptr<transport::Region> pool)
      : pool_(std::move(pool)), pages_(options, epoch) {
    writer_ = std::thread([this] { write_on(); });
  }
  ~PagesNode() {
    const fusion::PagesCounters& c = pages_.counters();
    std::printf(
        "pages: %llu grants, %llu asked back, %llu versions, %llu written, %llu dropped\n",
        static_cast<unsigned long long>(c.grants), static_cast<unsigned long long>(c.give_ups),
        static_cast<unsigned long long>(c.versions), static_cast<unsigned long long>(c.writes),
        static_cast<unsigned long long>(c.dropped));
  }

  class Server final : public PageService {
   public:
    Server(PagesNode* node, const proto::PageCaller& caller) : node_(node), caller_(caller) {}
    StatusOr<std::vector<proto::PageGrant>> ask(const std::vector<proto::PageAsk>& asks,
                                                uint64_t wait_us) override {
      AskWait wait{caller_.server, &asks, {}};
      if (wait_us != 0) node_->begin_wait(&wait);
      std::vector<proto::PageGrant> granted;
      const Status status =
          node_->call([&](Pages* pages) { return pages->ask(caller_, asks, monotonic_us()); },
                      caller_.server, &granted);
      if (wait_us != 0) node_->end_wait(&wait, status.ok() && granted.empty() ? wait_us : 0);
      if (wait.got.has_value()) granted.push_back(*wait.got);
      STRATA_RETURN_IF_ERROR(status);
      return granted;
    }
    Status report(const std::vector<proto::PageReport>& reports, Epoch) override {
      return node_->call(
          [&](Pages* pages) { return pages->report(caller_, reports, monotonic_us()); });
    }
    StatusOr<std::vector<uint32_t>> take_slots(uint64_t request, uint32_t wanted, uint64_t wait_us,
                                               Epoch) override {
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(wait_us);
      std::unique_lock lock(node_->mutex_);
      for (;;) {
        auto slots = node_->pages_.take_slots(caller_, request, wanted);
        if (!slots.ok() || !slots->empty() || std::chrono::steady_clock::now() >= end) return slots;
        node_->changed_.wait_until(lock, end);
      }
    }
    StatusOr<std::vector<PageId>> adopt() override {
      const std::lock_guard lock(node_->mutex_);
      const Status status = node_->pages_.adopt(caller_, caller_.server);
      if (!status.ok() && !is_not_found(status)) return status;
      std::vector<PageId> pages;
      for (const Pages::DeadPage& page : node_->pages_.dead_pages(caller_.server))
        pages.push_back(page.page);
      return pages;
    }
    Status adoption_ended(const proto::StreamPosition& end) override {
      return node_->call(
          [&](Pages* pages) { return pages->adoption_ended(caller_, caller_.server, end); });
    }
    Status write_back_below(StreamId stream, Lsn below) override {
      return node_->write_back_below([=](const Pages& p) { return p.oldest(stream) >= below; });
    }
    Status forget_space(SpaceId space) override {
      return node_->call([&](Pages* pages) {
        pages->forget_space(space);
        return ok_status();
      });
    }

   private:
    PagesNode* const node_;
    const proto::PageCaller caller_;
  };

  void joined(NodeId id, uint64_t life, FusionPages* client, PageSource* storage) {
    const std::lock_guard lock(mutex_);
    storage_ = storage;
    EXPECT_TRUE(pages_.joined(id, life).ok());
    clients_[id.value] = std::make_shared<Client>(life, client);
  }
  // Its kernel has gone, and with it whoever could put anything. Nobody says anything to its client
  // any more when this returns.
  void ended(NodeId id, uint64_t life, bool crashed) {
    std::shared_ptr<Client> client;
    const Status status = call([&](Pages* pages) {
      client = clients_[id.value];
      clients_.erase(id.value);
      if (crashed) {
        pages->fence(id);
        pages->release_fenced(id);
      } else {
        pages->left(id, life);
      }
      pages->mapping_gone(id, life);
      return ok_status();
    });
    EXPECT_TRUE(status.ok());
    std::unique_lock lock(mutex_);
    said_.wait(lock, [&] { return client->saying == 0; });
  }
  // How many were the answers of calls that waited for them.
  uint64_t grants_in_calls() {
    const std::lock_guard lock(mutex_);
    return grants_in_calls_;
  }
  size_t calls_that_wait() {
    const std::lock_guard lock(mutex_);
    return waits_.size();
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    writer_.join();
  }
  Status store_all() {
    return write_back_below([](const Pages& pages) { return pages.dirty_pages() == 0; });
  }

 private:
  struct Client {
    Client(uint64_t of_life, FusionPages* client) : life(of_life), pages(client) {}
    const uint64_t life;
    FusionPages* const pages;
    uint32_t saying = 0;  // threads that say something to it; under mutex_
  };
  // A call that waits for the first grant of its asks, which nobody is told otherwise.
  struct AskWait {
    const NodeId server;
    const std::vector<proto::PageAsk>* const asks;
    std::optional<proto::PageGrant> got;  // under mutex_ while it is registered
  };
  void begin_wait(AskWait* wait) {
    const std::lock_guard lock(mutex_);
    waits_.push_back(wait);
  }
  void end_wait(AskWait* wait, uint64_t wait_us) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(wait_us);
    std::unique_lock lock(mutex_);
    granted_.wait_until(lock, end, [wait] { return wait->got.has_value(); });
    waits_.remove(wait);
  }
  // Under mutex_.
  bool answer_wait(NodeId server, const proto::PageGrant& grant) {
    for (AskWait* const wait : waits_) {
      const bool is_its = std::any_of(wait->asks->begin(), wait->asks->end(),
                                      [&](const proto::PageAsk& a) { return a.ask == grant.ask; });
      if (wait->server != server || wait->got.has_value() || !is_its) continue;
      wait->got = grant;
      ++grants_in_calls_;
      granted_.notify_all();
      return true;
    }
    return false;
  }
  // Says what there is to say. Grants to `self` go to *granted instead.
  Status call(const std::function<Status(Pages*)>& action, NodeId self = {},
              std::vector<proto::PageGrant>* granted = nullptr) {
    std::unique_lock lock(mutex_);
    const Status status = action(&pages_);
    std::vector<Pages::Outgoing> out = pages_.take_outgoing();
    for (Pages::Outgoing& one : out) {
      auto* const grant = std::get_if<proto::PageGrant>(&one.message);
      if (grant != nullptr && granted != nullptr && one.server == self) {
        granted->push_back(std::move(*grant));
        continue;
      }
      const auto it = clients_.find(one.server.value);
      if (it == clients_.end() || it->second->life != one.life) continue;
      if (grant != nullptr && answer_wait(one.server, *grant)) continue;
      const std::shared_ptr<Client> client = it->second;
      ++client->saying;
      lock.unlock();
      if (grant != nullptr)
        client->pages->granted(*grant);
      else
        client->pages->asked_back(std::get<proto::PageGiveUp>(one.message));
      lock.lock();
      if (--client->saying == 0) said_.notify_all();
    }
    return status;
  }
  // One batch; false: there is nothing to write.
  StatusOr<bool> write_some() {
    std::vector<Pages::Write> writes;
    PageSource* storage = nullptr;
    {
      const std::lock_guard lock(mutex_);
      writes = pages_.begin_writes(kWriteBatchPages);
      storage = storage_;
    }
    if (writes.empty()) return false;
    AlignedBytes page(kPageBytes);
    Status status;
    std::vector<bool> written;
    for (const Pages::Write& write : writes) {
      std::memcpy(page.get(), pool_->data() + uint64_t{write.slot} * kPageBytes, kPageBytes);
      Status one = PageSlots::check(page.get(), write.page, write.llsn);
      EXPECT_TRUE(one.ok()) << one;  // what is in a page's slot nobody puts into
      if (one.ok()) one = storage->write(write.page, page.get());
      written.push_back(one.ok());
      if (!one.ok()) status = one;
    }
    if (status.ok()) status = storage->sync();
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < writes.size(); ++i)
      pages_.write_ended(writes[i], status.ok() && written[i]);
    changed_.notify_all();
    return true;
  }
  Status write_back_below(const std::function<bool(const Pages&)>& reached) {
    const uint64_t deadline_us = monotonic_us() + 60'000'000;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        if (reached(pages_)) return ok_status();
        if (monotonic_us() > deadline_us) return error_timed_out();
      }
      STRATA_ASSIGN_OR_RETURN(const bool wrote, write_some());
      if (wrote) continue;
      std::unique_lock lock(mutex_);  // the writer has it
      changed_.wait_for(lock, std::chrono::milliseconds(5));
    }
  }
  void write_on() {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, std::chrono::milliseconds(10));
        if (stopping_) return;
      }
      Status said = call([](Pages* pages) {
        pages->tick(monotonic_us());
        return ok_status();
      });
      EXPECT_TRUE(said.ok());
      const auto wrote = write_some();
      EXPECT_TRUE(wrote.ok()) << wrote.status();
    }
  }

  const std::shared_ptr<transport::Region> pool_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable said_;
  std::condition_variable granted_;
  uint64_t grants_in_calls_ = 0;                        // under mutex_
  std::list<AskWait*> waits_;                           // under mutex_
  Pages pages_;                                         // under mutex_
  std::map<uint8_t, std::shared_ptr<Client>> clients_;  // under mutex_
  PageSource* storage_ = nullptr;                       // under mutex_
  bool stopping_ = false;                               // under mutex_
  std::thread writer_;
};

}  // namespace strata::sim
