//! The nemesis: injects the faults of the plan.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rustix::process::Signal;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::sleep;

use super::World;
use super::slot::{ProcessKind, Slot};
use crate::arena::Arena;
use crate::by_url;
use crate::database::{self, TestDatabase};
use crate::faults::Fault;
use crate::history::Op;
use crate::plan::Step;
use crate::poison;
use crate::receiver::Behaviour;
use crate::servers::DatabaseKind;
use crate::state::leader;

/// A duration from a range in milliseconds, selected by random bits.
fn between(random: u64, from: u64, to: u64) -> Duration {
    Duration::from_millis(from + random % (to - from))
}

impl World {
    pub(super) async fn inject(self: Arc<Self>, step: Step) {
        if let Err(error) = self.try_inject(step).await {
            self.log(&format!("{:<12} cannot be injected: {error:#}", step.fault));
        }
    }

    async fn try_inject(&self, step: Step) -> Result<()> {
        let Step { fault, pick, random, .. } = step;
        match fault {
            Fault::KillRelay => {
                let slot = self
                    .pick(pick, |kind| kind.relays() && !kind.writes() || kind == ProcessKind::Reader)
                    .await?;
                self.kill(fault, slot, random).await
            }
            Fault::KillWriter => {
                let slot = self.pick(pick, ProcessKind::writes).await?;
                self.kill(fault, slot, random).await
            }
            Fault::Stop => {
                let slot = self.pick(pick, ProcessKind::relays).await?;
                self.freeze(fault, slot, random).await;
                Ok(())
            }
            Fault::Cut => {
                let slot = self.pick(pick, |_| true).await?;
                self.cut(fault, &slot);
                Ok(())
            }
            Fault::Mute => {
                // Writers more often than others, since a muted writer never learns the results of
                // its commits.
                let slot = self.pick(pick, |kind| random.is_multiple_of(3) || kind.writes()).await?;
                self.mute(slot, random / 3).await;
                Ok(())
            }
            Fault::Leader => self.inject_leader_fault(random).await,
            Fault::Restart => self.restart(random).await,
            Fault::Terminate => self.terminate().await,
            Fault::Full => self.fill_disk(random).await,
            Fault::Outage => self.outage(random).await,
            Fault::Clock => {
                let slot = self.pick(pick, ProcessKind::relays).await?;
                self.shift_clock(slot, random).await
            }
            Fault::Upgrade => self.upgrade().await,
            Fault::Poison => self.poison(fault, pick, random).await,
            Fault::Oversize => self.poison(fault, pick, random).await,
            Fault::Receiver => self.misbehave(random).await,
            Fault::Pooler => self.kill_pooler(random).await,
            Fault::Panic | Fault::Abort => Ok(()),
        }
    }

    /// Selects a target process. Waits while another fault holds its slot.
    async fn pick(&self, pick: u64, can_be: impl Fn(ProcessKind) -> bool) -> Result<OwnedMutexGuard<Slot>> {
        let all = self.slots.iter().zip(&self.kinds);
        let slots: Vec<_> = all.filter(|(_, kind)| can_be(**kind)).map(|(slot, _)| slot.clone()).collect();
        let count = u64::try_from(slots.len())?.max(1);
        let slot =
            slots.into_iter().nth(usize::try_from(pick % count)?).context("no process can be the target")?;
        Ok(Mutex::lock_owned(slot).await)
    }

    fn count_fault(&self, fault: Fault, target: &str) {
        *self.injected.lock().expect("no thread panics while it holds the lock").entry(fault).or_default() +=
            1;
        self.log(&format!("{fault:<12} {target}"));
    }

    /// Records the start of a fault; [`World::fault_ended`] records its end.
    fn fault_started(&self, what: &str, process: Option<&str>) {
        self.history.record(Op::Hit { fault: what.to_owned(), process: process.map(str::to_owned) });
    }

    fn fault_ended(&self, what: &str, process: Option<&str>) {
        self.history.record(Op::Over { fault: what.to_owned(), process: process.map(str::to_owned) });
    }

    async fn kill(&self, fault: Fault, mut slot: OwnedMutexGuard<Slot>, random: u64) -> Result<()> {
        let name = slot.process_name();
        self.count_fault(fault, &format!("{name}: kill -9"));
        if let Some(how) = slot.end(Signal::KILL).await {
            self.record_exit(&mut slot, &how, true);
        }
        sleep(between(random, 50, 1_000)).await;
        self.start(&mut slot)
    }

    async fn freeze(&self, fault: Fault, slot: OwnedMutexGuard<Slot>, random: u64) {
        let name = slot.process_name();
        let lease = u64::try_from(slot.arena.lease(self.settings.lease).as_millis()).unwrap_or(u64::MAX);
        let time = between(random, lease * 11 / 10, lease * 16 / 10);
        self.count_fault(fault, &format!("{name}: stopped for {:.1} s", time.as_secs_f64()));
        self.fault_started("stop", Some(&name));
        slot.signal(Signal::STOP);
        sleep(time).await;
        slot.signal(Signal::CONT);
        self.fault_ended("stop", Some(&name));
    }

    fn cut(&self, fault: Fault, slot: &Slot) {
        let name = slot.process_name();
        self.count_fault(fault, &format!("{name}: connections cut"));
        self.fault_started("cut", Some(&name));
        if let Some(proxy) = &slot.proxy {
            proxy.cut();
        }
        self.fault_ended("cut", Some(&name));
    }

    async fn mute(&self, slot: OwnedMutexGuard<Slot>, random: u64) {
        let name = slot.process_name();
        let time = between(random, 20, 2_500);
        self.count_fault(
            Fault::Mute,
            &format!("{name}: no answers for {:.1} s, then cut", time.as_secs_f64()),
        );
        self.fault_started("mute", Some(&name));
        if let Some(proxy) = &slot.proxy {
            proxy.mute();
            sleep(time).await;
            proxy.cut();
        }
        self.fault_ended("mute", Some(&name));
    }

    /// Kills, stops or cuts off the leader of [`Arena::Single`].
    async fn inject_leader_fault(&self, random: u64) -> Result<()> {
        let (url, prefix) = (&self.direct, &self.prefix);
        let leader = by_url!(url, leader::<DB>(url, Arena::Single, prefix))?.context("there is no leader")?;
        for slot in &self.slots {
            // Another fault holds a locked slot.
            let Ok(slot) = slot.clone().try_lock_owned() else { continue };
            if slot.process_name() == leader {
                match random % 4 {
                    0 => self.freeze(Fault::Leader, slot, random / 4).await,
                    1 if slot.proxy.is_some() => self.cut(Fault::Leader, &slot),
                    _ => self.kill(Fault::Leader, slot, random / 4).await?,
                }
                return Ok(());
            }
        }
        Ok(())
    }

    async fn restart(&self, random: u64) -> Result<()> {
        let mut server = self.server.lock().await;
        if !server.is_managed() {
            return Ok(());
        }
        let time = between(random, 0, 2_000);
        self.count_fault(Fault::Restart, &format!("{}: down for {:.1} s", server.kind, time.as_secs_f64()));
        self.fault_started("restart", None);
        server.down().await;
        sleep(time).await;
        let up = server.up().await;
        self.fault_ended("restart", None);
        up
    }

    async fn terminate(&self) -> Result<()> {
        let (kind, url) = (self.settings.database, &self.direct);
        self.count_fault(Fault::Terminate, &format!("{kind}: all connections ended"));
        self.fault_started("terminate", None);
        let done = by_url!(url, end_connections::<DB>(url, kind));
        self.fault_ended("terminate", None);
        done
    }

    async fn fill_disk(&self, random: u64) -> Result<()> {
        let mut server = self.server.lock().await;
        if server.disk.is_none() {
            return Ok(());
        }
        let time = between(random, 2_000, 5_000);
        self.count_fault(Fault::Full, &format!("{}: disk full for {:.1} s", server.kind, time.as_secs_f64()));
        self.fault_started("full", None);
        let filled = server.disk.as_ref().map_or(Ok(()), crate::servers::Disk::fill);
        sleep(time).await;
        let freed = server.disk.as_ref().map_or(Ok(()), crate::servers::Disk::free);
        // Some servers exit when their disk is full.
        sleep(Duration::from_millis(500)).await;
        let up = server.up().await;
        self.fault_ended("full", None);
        filled.and(freed).and(up)
    }

    /// Inserts hostile rows into the table of an arena.
    async fn poison(&self, fault: Fault, pick: u64, random: u64) -> Result<()> {
        let arenas = &self.settings.arenas;
        let arena = arenas[usize::try_from(pick % u64::try_from(arenas.len())?)?];
        let count = if fault == Fault::Oversize { 1 + random % 2 } else { 5 + random % 15 };
        self.count_fault(fault, &format!("{arena}: {count} hostile rows"));
        let (url, first) = (&self.direct, self.foreign.fetch_add(count, Ordering::SeqCst));
        let numbers = first..first + count;
        let rng = SmallRng::seed_from_u64(random);
        by_url!(url, insert_hostile::<DB>(self, fault, arena, numbers, rng))
    }

    async fn misbehave(&self, random: u64) -> Result<()> {
        let Some(receiver) = &self.receiver else { return Ok(()) };
        let (time, one_in) = (between(random / 64, 1_000, 6_000), 1 + random / 8 % 3);
        let behaviour = Behaviour::bad(random);
        let text = format!("{behaviour:?} to one request in {one_in} for {:.1} s", time.as_secs_f64());
        self.count_fault(Fault::Receiver, &text);
        self.fault_started("receiver", None);
        receiver.behave(behaviour, one_in);
        sleep(time).await;
        receiver.behave(Behaviour::Correct, 1);
        self.fault_ended("receiver", None);
        Ok(())
    }

    async fn kill_pooler(&self, random: u64) -> Result<()> {
        let mut pooler = self.pooler.lock().await;
        let Some(pooler) = pooler.as_mut() else { return Ok(()) };
        let time = between(random, 0, 2_000);
        self.count_fault(Fault::Pooler, &format!("PgBouncer: down for {:.1} s", time.as_secs_f64()));
        self.fault_started("pooler", None);
        pooler.down().await;
        sleep(time).await;
        let up = pooler.up().await;
        self.fault_ended("pooler", None);
        up
    }

    async fn outage(&self, random: u64) -> Result<()> {
        let mut broker = self.broker.lock().await;
        let Some(mut nats) = broker.take() else { return Ok(()) };
        let (time, hangs) = (between(random / 2, 1_000, 8_000), random.is_multiple_of(2));
        let what = if hangs { "hangs" } else { "is down" };
        self.count_fault(Fault::Outage, &format!("the broker {what} for {:.1} s", time.as_secs_f64()));
        self.fault_started("outage", None);
        // The testbed's calls block.
        let nats = tokio::task::spawn_blocking(move || {
            if hangs {
                nats.freeze();
                std::thread::sleep(time);
                nats.thaw();
            } else {
                nats.kill();
                std::thread::sleep(time);
                nats.start();
            }
            nats
        });
        *broker = Some(nats.await?);
        self.fault_ended("outage", None);
        Ok(())
    }

    async fn shift_clock(&self, slot: OwnedMutexGuard<Slot>, random: u64) -> Result<()> {
        if self.settings.faketime.is_none() {
            return Ok(());
        }
        let name = slot.process_name();
        let (time, shift) =
            (between(random / 2, 2_000, 8_000), if random.is_multiple_of(2) { "+600" } else { "-600" });
        self.count_fault(Fault::Clock, &format!("{name}: {shift} s for {:.1} s", time.as_secs_f64()));
        let file = self.clock_file(&slot);
        self.fault_started("clock", Some(&name));
        std::fs::write(&file, shift)?;
        sleep(time).await;
        std::fs::write(&file, "+0")?;
        self.fault_ended("clock", Some(&name));
        Ok(())
    }

    /// Upgrades all processes to a new generation, one after another; writers early, so that old
    /// relays meet event types that they do not know.
    async fn upgrade(&self) -> Result<()> {
        let _alone = self.upgrading.lock().await;
        let generation = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
        self.count_fault(
            Fault::Upgrade,
            &format!("all processes to generation {generation}, one after another"),
        );
        let mut slots = self.slots.clone();
        // Processes that only write come first, then the rest.
        slots.sort_by_key(|slot| {
            slot.try_lock().map_or(2, |slot| if slot.kind == ProcessKind::Writer { 1 } else { 2 })
        });
        for slot in slots {
            let mut slot = slot.lock_owned().await;
            if let Some(how) = slot.end(Signal::TERM).await {
                // A process that has not installed its signal handler yet ends by the signal.
                let expected = how == "exit code 0" || how == "signal 15" || self.may_abort(&how);
                self.record_exit(&mut slot, &how, expected);
            }
            self.start(&mut slot)?;
        }
        Ok(())
    }
}

/// Inserts hostile rows. A row that the database rejects does no harm.
async fn insert_hostile<DB: TestDatabase>(
    world: &World,
    fault: Fault,
    arena: Arena,
    numbers: std::ops::Range<u64>,
    mut rng: SmallRng,
) -> Result<()> {
    let table = arena.table(&world.prefix);
    let mut conn = <DB::Connection as sqlx::Connection>::connect(&world.direct).await?;
    let columns = database::columns::<DB>(&mut conn, &table).await?;
    DB::execute_sql(&mut conn, DB::LENIENT).await?;
    for number in numbers {
        let row = match fault {
            Fault::Oversize => poison::oversized::<DB>(&mut rng, number),
            _ => poison::row::<DB>(&mut rng, &columns, number),
        };
        // Recorded before the insert, since a relay may deliver the row at once.
        world.history.record(Op::Foreign { arena, id: row.id.clone(), text: row.text.clone() });
        match DB::execute_sql(&mut conn, &row.insert(&table)).await {
            Ok(_) | Err(sqlx::Error::Database(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Terminates all connections of the server but this one.
async fn end_connections<DB: TestDatabase>(url: &str, kind: DatabaseKind) -> Result<()> {
    let mut conn = <DB::Connection as sqlx::Connection>::connect(url).await?;
    if kind == DatabaseKind::Postgres {
        let all = "SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity \
                   WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
        DB::texts(&mut conn, all).await?;
        return Ok(());
    }
    let all = "SELECT CAST(id AS CHAR) FROM information_schema.processlist \
               WHERE id <> CONNECTION_ID() AND command <> 'Daemon'";
    for id in DB::texts(&mut conn, all).await? {
        // The connection may be closed already.
        let _ = DB::execute_sql(&mut conn, &format!("KILL {id}")).await;
    }
    Ok(())
}
