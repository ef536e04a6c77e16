// The memory node's half of names, dropped spaces and page reuse for tests in real time: calls are
// calls of functions, and what it has to say to a server is said in the thread that made it say so,
// without its mutex. A thread of its own asks again.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "clients/fusion/name_locks.h"
#include "clients/fusion/reuse_client.h"
#include "fusion/names/dropped_spaces.h"
#include "fusion/names/names.h"
#include "fusion/reuse/reuse_rounds.h"

namespace strata::sim {

class NamesNode {
 public:
  explicit NamesNode(Epoch epoch) : names_({}, epoch), spaces_({}, epoch), rounds_({}, epoch) {
    ticker_ = std::thread([this] { tick_on(); });
  }
  ~NamesNode() {
    const fusion::NamesCounters& c = names_.counters();
    std::printf(
        "names: %llu grants, %llu asked back, %llu cancelled, %llu dead; %llu rounds\n",
        static_cast<unsigned long long>(c.grants), static_cast<unsigned long long>(c.give_ups),
        static_cast<unsigned long long>(c.cancelled), static_cast<unsigned long long>(c.dead),
        static_cast<unsigned long long>(rounds_.last_round()));
  }

  class Server final : public clients::NameService, public clients::ReuseService {
   public:
    Server(NamesNode* node, const proto::NameCaller& caller) : node_(node), caller_(caller) {}
    Status ask(const std::vector<proto::NameAsk>& asks) override {
      return node_->call([&] { return node_->names_.ask(caller_, asks, monotonic_us()); });
    }
    Status report(const std::vector<proto::NameReport>& reports) override {
      return node_->call([&] { return node_->names_.report(caller_, reports, monotonic_us()); });
    }
    Status adoption_ended() override {
      return node_->call([&]() -> Status {
        const Status adopted = node_->names_.adopt(caller_, caller_.server);
        if (is_not_found(adopted)) return ok_status();
        STRATA_RETURN_IF_ERROR(adopted);
        return node_->names_.adoption_ended(caller_, caller_.server, monotonic_us());
      });
    }
    StatusOr<bool> space_dropped(SpaceId space) override {
      StatusOr<bool> left = false;
      STRATA_RETURN_IF_ERROR(node_->call([&] {
        left = node_->spaces_.dropped(caller_, space, monotonic_us());
        return ok_status();
      }));
      return left;
    }
    Status has_left(const std::vector<SpaceId>& spaces) override {
      return node_->call([&] { return node_->spaces_.has_left(caller_, spaces); });
    }
    StatusOr<uint64_t> begin_round() override {
      StatusOr<uint64_t> round = uint64_t{0};
      STRATA_RETURN_IF_ERROR(node_->call([&] {
        round = node_->rounds_.begin(caller_, monotonic_us());
        return ok_status();
      }));
      return round;
    }
    StatusOr<bool> round_ended(uint64_t round) override {
      const std::lock_guard lock(node_->mutex_);
      return node_->rounds_.ended(caller_, round);
    }
    Status report_round(uint64_t round) override {
      return node_->call([&] { return node_->rounds_.report(caller_, round); });
    }

   private:
    NamesNode* const node_;
    const proto::NameCaller caller_;
  };

  void joined(NodeId id, uint64_t life, clients::NameLocks* names, clients::ReuseClient* reuse) {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(names_.joined(id, life).ok());
    EXPECT_TRUE(spaces_.joined(id, life).ok());
    EXPECT_TRUE(rounds_.joined(id, life).ok());
    clients_[id.value] = std::make_shared<Client>(life, names, reuse);
  }
  // Its kernel has gone. Nobody says anything to its clients any more when this returns.
  void ended(NodeId id, uint64_t life, bool crashed) {
    std::shared_ptr<Client> client;
    const Status status = call([&] {
      client = clients_[id.value];
      clients_.erase(id.value);
      if (crashed) {
        names_.fence(id);
        spaces_.fence(id);
        rounds_.fence(id);
        names_.release_fenced(id);
        spaces_.release_fenced(id);
        rounds_.release_fenced(id);
      } else {
        names_.left(id, life);
        spaces_.left(id, life);
        rounds_.left(id, life);
      }
      return ok_status();
    });
    EXPECT_TRUE(status.ok());
    std::unique_lock lock(mutex_);
    said_.wait(lock, [&] { return client->saying == 0; });
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    stop_.notify_all();
    ticker_.join();
    EXPECT_EQ(names_.check(), "");
  }
  [[nodiscard]] uint64_t names() {
    const std::lock_guard lock(mutex_);
    return names_.names();
  }
  [[nodiscard]] fusion::NamesCounters counters() {
    const std::lock_guard lock(mutex_);
    return names_.counters();
  }

 private:
  struct Client {
    Client(uint64_t of_life, clients::NameLocks* its_names, clients::ReuseClient* its_reuse)
        : life(of_life), names(its_names), reuse(its_reuse) {}
    const uint64_t life;
    clients::NameLocks* const names;
    clients::ReuseClient* const reuse;
    uint32_t saying = 0;  // threads that say something to it; under mutex_
  };
  struct ToSay {
    NodeId server;
    uint64_t life = 0;
    std::function<void(const Client&)> what;
  };
  // Under mutex_.
  std::vector<ToSay> take_outgoing() {
    std::vector<ToSay> all;
    for (auto& out : names_.take_outgoing())
      all.push_back({out.server, out.life, [message = std::move(out.message)](const Client& c) {
                       if (const auto* grant = std::get_if<proto::NameGrant>(&message))
                         c.names->granted(*grant);
                       else
                         c.names->asked_back(std::get<proto::NameGiveUp>(message));
                     }});
    for (const auto& out : spaces_.take_outgoing())
      all.push_back({out.server, out.life, [message = out.message](const Client& c) {
                       if (const auto* leave = std::get_if<proto::SpaceLeave>(&message))
                         c.names->asked_to_leave(*leave);
                       else
                         c.names->is_left(std::get<proto::SpaceIsLeft>(message));
                     }});
    for (const auto& out : rounds_.take_outgoing())
      all.push_back({out.server, out.life,
                     [message = out.message](const Client& c) { c.reuse->asked(message); }});
    return all;
  }
  Status call(const std::function<Status()>& action) {
    std::unique_lock lock(mutex_);
    const Status status = action();
    for (const ToSay& one : take_outgoing()) {
      const auto it = clients_.find(one.server.value);
      if (it == clients_.end() || it->second->life != one.life) continue;
      const std::shared_ptr<Client> client = it->second;
      ++client->saying;
      lock.unlock();
      one.what(*client);
      lock.lock();
      if (--client->saying == 0) said_.notify_all();
    }
    return status;
  }
  void tick_on() {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        stop_.wait_for(lock, std::chrono::milliseconds(20));
        if (stopping_) return;
      }
      const Status said = call([this] {
        names_.tick(monotonic_us());
        spaces_.tick(monotonic_us());
        rounds_.tick(monotonic_us());
        return ok_status();
      });
      EXPECT_TRUE(said.ok());
    }
  }

  std::mutex mutex_;
  std::condition_variable stop_;
  std::condition_variable said_;
  fusion::Names names_;                                 // under mutex_
  fusion::DroppedSpaces spaces_;                        // under mutex_
  fusion::ReuseRounds rounds_;                          // under mutex_
  std::map<uint8_t, std::shared_ptr<Client>> clients_;  // under mutex_
  bool stopping_ = false;                               // under mutex_
  std::thread ticker_;
};

}  // namespace strata::sim
