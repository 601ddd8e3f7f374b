//! Does what the plan says.

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
use super::slot::{Part, Slot};
use crate::arena::Arena;
use crate::base::{self, Base};
use crate::by_url;
use crate::faults::Fault;
use crate::history::What;
use crate::plan::Step;
use crate::poison;
use crate::receiver::Manner;
use crate::servers::Kind;
use crate::state::leader;

/// A number from a range, by a step's dice.
fn between(dice: u64, from: u64, to: u64) -> Duration {
    Duration::from_millis(from + dice % (to - from))
}

impl World {
    pub(super) async fn strike(self: Arc<Self>, step: Step) {
        if let Err(error) = self.try_strike(step).await {
            self.say(&format!("{:<12} could not be done: {error:#}", step.fault));
        }
    }

    async fn try_strike(&self, step: Step) -> Result<()> {
        let Step { fault, pick, dice, .. } = step;
        match fault {
            Fault::KillRelay => {
                let slot =
                    self.pick(pick, |part| part.relays() && !part.writes() || part == Part::Reader).await?;
                self.kill(fault, slot, dice).await
            }
            Fault::KillWriter => {
                let slot = self.pick(pick, Part::writes).await?;
                self.kill(fault, slot, dice).await
            }
            Fault::Stop => {
                let slot = self.pick(pick, Part::relays).await?;
                self.freeze(fault, slot, dice).await;
                Ok(())
            }
            Fault::Cut => {
                let slot = self.pick(pick, |_| true).await?;
                self.cut(fault, &slot);
                Ok(())
            }
            Fault::Mute => {
                // Writers more often than others: theirs are the commits of which nobody knows.
                let slot = self.pick(pick, |part| dice.is_multiple_of(3) || part.writes()).await?;
                self.mute(slot, dice / 3).await;
                Ok(())
            }
            Fault::Leader => self.strike_leader(dice).await,
            Fault::Restart => self.restart(dice).await,
            Fault::Terminate => self.terminate().await,
            Fault::Full => self.fill_disk(dice).await,
            Fault::Outage => self.outage(dice).await,
            Fault::Clock => {
                let slot = self.pick(pick, Part::relays).await?;
                self.shift_clock(slot, dice).await
            }
            Fault::Upgrade => self.upgrade().await,
            Fault::Poison => self.poison(fault, pick, dice).await,
            Fault::Oversize => self.poison(fault, pick, dice).await,
            Fault::Receiver => self.misbehave(dice).await,
            Fault::Pooler => self.kill_pooler(dice).await,
            Fault::Panic | Fault::Abort => Ok(()),
        }
    }

    /// One of the processes that can be hit. Waits while somebody else has it.
    async fn pick(&self, pick: u64, can_be: impl Fn(Part) -> bool) -> Result<OwnedMutexGuard<Slot>> {
        let all = self.slots.iter().zip(&self.parts);
        let slots: Vec<_> = all.filter(|(_, part)| can_be(**part)).map(|(slot, _)| slot.clone()).collect();
        let count = u64::try_from(slots.len())?.max(1);
        let slot = slots.into_iter().nth(usize::try_from(pick % count)?).context("there is nobody to hit")?;
        Ok(Mutex::lock_owned(slot).await)
    }

    fn struck(&self, fault: Fault, whom: &str) {
        *self.struck.lock().expect("nobody panics with it").entry(fault).or_default() += 1;
        self.say(&format!("{fault:<12} {whom}"));
    }

    /// Notes in the history that something begins, and its end when that comes.
    fn hit(&self, what: &str, process: Option<&str>) {
        self.scribe.note(What::Hit { fault: what.to_owned(), process: process.map(str::to_owned) });
    }

    fn over(&self, what: &str, process: Option<&str>) {
        self.scribe.note(What::Over { fault: what.to_owned(), process: process.map(str::to_owned) });
    }

    async fn kill(&self, fault: Fault, mut slot: OwnedMutexGuard<Slot>, dice: u64) -> Result<()> {
        let name = slot.process_name();
        self.struck(fault, &format!("{name}: kill -9"));
        if let Some(how) = slot.end(Signal::KILL).await {
            self.gone(&mut slot, &how, true);
        }
        sleep(between(dice, 50, 1_000)).await;
        self.start(&mut slot)
    }

    async fn freeze(&self, fault: Fault, slot: OwnedMutexGuard<Slot>, dice: u64) {
        let name = slot.process_name();
        let lease = u64::try_from(slot.arena.lease(self.settings.lease).as_millis()).unwrap_or(u64::MAX);
        let time = between(dice, lease * 11 / 10, lease * 16 / 10);
        self.struck(fault, &format!("{name}: stopped for {:.1} s", time.as_secs_f64()));
        self.hit("stop", Some(&name));
        slot.signal(Signal::STOP);
        sleep(time).await;
        slot.signal(Signal::CONT);
        self.over("stop", Some(&name));
    }

    fn cut(&self, fault: Fault, slot: &Slot) {
        let name = slot.process_name();
        self.struck(fault, &format!("{name}: connections cut"));
        self.hit("cut", Some(&name));
        if let Some(proxy) = &slot.proxy {
            proxy.cut();
        }
        self.over("cut", Some(&name));
    }

    async fn mute(&self, slot: OwnedMutexGuard<Slot>, dice: u64) {
        let name = slot.process_name();
        let time = between(dice, 20, 2_500);
        self.struck(Fault::Mute, &format!("{name}: no answers for {:.1} s, then cut", time.as_secs_f64()));
        self.hit("mute", Some(&name));
        if let Some(proxy) = &slot.proxy {
            proxy.mute();
            sleep(time).await;
            proxy.cut();
        }
        self.over("mute", Some(&name));
    }

    /// Kills, stops or cuts off whoever leads the arena of which one leads all.
    async fn strike_leader(&self, dice: u64) -> Result<()> {
        let (url, prefix) = (&self.direct, &self.prefix);
        let leader = by_url!(url, leader::<DB>(url, Arena::Single, prefix))?.context("nobody leads")?;
        for slot in &self.slots {
            // Something else happens to one that somebody has.
            let Ok(slot) = slot.clone().try_lock_owned() else { continue };
            if slot.process_name() == leader {
                match dice % 4 {
                    0 => self.freeze(Fault::Leader, slot, dice / 4).await,
                    1 if slot.proxy.is_some() => self.cut(Fault::Leader, &slot),
                    _ => self.kill(Fault::Leader, slot, dice / 4).await?,
                }
                return Ok(());
            }
        }
        Ok(())
    }

    async fn restart(&self, dice: u64) -> Result<()> {
        let mut server = self.server.lock().await;
        if !server.is_ours() {
            return Ok(());
        }
        let time = between(dice, 0, 2_000);
        self.struck(Fault::Restart, &format!("{}: down for {:.1} s", server.kind, time.as_secs_f64()));
        self.hit("restart", None);
        server.down().await;
        sleep(time).await;
        let up = server.up().await;
        self.over("restart", None);
        up
    }

    async fn terminate(&self) -> Result<()> {
        let (kind, url) = (self.settings.database, &self.direct);
        self.struck(Fault::Terminate, &format!("{kind}: all connections ended"));
        self.hit("terminate", None);
        let done = by_url!(url, end_connections::<DB>(url, kind));
        self.over("terminate", None);
        done
    }

    async fn fill_disk(&self, dice: u64) -> Result<()> {
        let mut server = self.server.lock().await;
        if server.disk.is_none() {
            return Ok(());
        }
        let time = between(dice, 2_000, 5_000);
        self.struck(Fault::Full, &format!("{}: disk full for {:.1} s", server.kind, time.as_secs_f64()));
        self.hit("full", None);
        let filled = server.disk.as_ref().map_or(Ok(()), crate::servers::Disk::fill);
        sleep(time).await;
        let freed = server.disk.as_ref().map_or(Ok(()), crate::servers::Disk::free);
        // Some servers rather end than go on without a disk.
        sleep(Duration::from_millis(500)).await;
        let up = server.up().await;
        self.over("full", None);
        filled.and(freed).and(up)
    }

    /// Inserts hostile rows into the table of an arena.
    async fn poison(&self, fault: Fault, pick: u64, dice: u64) -> Result<()> {
        let arenas = &self.settings.arenas;
        let arena = arenas[usize::try_from(pick % u64::try_from(arenas.len())?)?];
        let count = if fault == Fault::Oversize { 1 + dice % 2 } else { 5 + dice % 15 };
        self.struck(fault, &format!("{arena}: {count} hostile rows"));
        let (url, first) = (&self.direct, self.foreign.fetch_add(count, Ordering::SeqCst));
        let numbers = first..first + count;
        let dice = SmallRng::seed_from_u64(dice);
        by_url!(url, insert_hostile::<DB>(self, fault, arena, numbers, dice))
    }

    async fn misbehave(&self, dice: u64) -> Result<()> {
        let Some(receiver) = &self.receiver else { return Ok(()) };
        let (time, one_in) = (between(dice / 64, 1_000, 6_000), 1 + dice / 8 % 3);
        let manner = Manner::bad(dice);
        let text = format!("{manner:?} to one request in {one_in} for {:.1} s", time.as_secs_f64());
        self.struck(Fault::Receiver, &text);
        self.hit("receiver", None);
        receiver.behave(manner, one_in);
        sleep(time).await;
        receiver.behave(Manner::Right, 1);
        self.over("receiver", None);
        Ok(())
    }

    async fn kill_pooler(&self, dice: u64) -> Result<()> {
        let mut pooler = self.pooler.lock().await;
        let Some(pooler) = pooler.as_mut() else { return Ok(()) };
        let time = between(dice, 0, 2_000);
        self.struck(Fault::Pooler, &format!("PgBouncer: down for {:.1} s", time.as_secs_f64()));
        self.hit("pooler", None);
        pooler.down().await;
        sleep(time).await;
        let up = pooler.up().await;
        self.over("pooler", None);
        up
    }

    async fn outage(&self, dice: u64) -> Result<()> {
        let mut broker = self.broker.lock().await;
        let Some(mut nats) = broker.take() else { return Ok(()) };
        let (time, hangs) = (between(dice / 2, 1_000, 8_000), dice.is_multiple_of(2));
        let what = if hangs { "hangs" } else { "is down" };
        self.struck(Fault::Outage, &format!("the broker {what} for {:.1} s", time.as_secs_f64()));
        self.hit("outage", None);
        // The testbed waits for its server.
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
        self.over("outage", None);
        Ok(())
    }

    async fn shift_clock(&self, slot: OwnedMutexGuard<Slot>, dice: u64) -> Result<()> {
        if self.settings.faketime.is_none() {
            return Ok(());
        }
        let name = slot.process_name();
        let (time, shift) =
            (between(dice / 2, 2_000, 8_000), if dice.is_multiple_of(2) { "+600" } else { "-600" });
        self.struck(Fault::Clock, &format!("{name}: {shift} s for {:.1} s", time.as_secs_f64()));
        let file = self.clock_file(&slot);
        self.hit("clock", Some(&name));
        std::fs::write(&file, shift)?;
        sleep(time).await;
        std::fs::write(&file, "+0")?;
        self.over("clock", Some(&name));
        Ok(())
    }

    /// A new generation, one process after another: writers early, so that old relays see what they do not know.
    async fn upgrade(&self) -> Result<()> {
        let _alone = self.upgrading.lock().await;
        let generation = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
        self.struck(Fault::Upgrade, &format!("everybody to generation {generation}, one after another"));
        let mut slots = self.slots.clone();
        // The first relay, then whoever only writes, then the rest.
        slots.sort_by_key(|slot| {
            slot.try_lock().map_or(2, |slot| if slot.part == Part::Writer { 1 } else { 2 })
        });
        for slot in slots {
            let mut slot = slot.lock_owned().await;
            if let Some(how) = slot.end(Signal::TERM).await {
                // One that has only just begun knows no better than to end by the signal.
                let expected = how == "exit code 0" || how == "signal 15" || self.may_abort(&how);
                self.gone(&mut slot, &how, expected);
            }
            self.start(&mut slot)?;
        }
        Ok(())
    }
}

/// Inserts hostile rows. What the database refuses is not there, and no harm.
async fn insert_hostile<DB: Base>(
    world: &World,
    fault: Fault,
    arena: Arena,
    numbers: std::ops::Range<u64>,
    mut dice: SmallRng,
) -> Result<()> {
    let table = arena.table(&world.prefix);
    let mut conn = <DB::Connection as sqlx::Connection>::connect(&world.direct).await?;
    let columns = base::columns::<DB>(&mut conn, &table).await?;
    DB::execute_sql(&mut conn, DB::LENIENT).await?;
    for number in numbers {
        let row = match fault {
            Fault::Oversize => poison::oversized::<DB>(&mut dice, number),
            _ => poison::row::<DB>(&mut dice, &columns, number),
        };
        // Before it is there: a relay may be quicker.
        world.scribe.note(What::Foreign { arena, id: row.id.clone(), text: row.text.clone() });
        match DB::execute_sql(&mut conn, &row.insert(&table)).await {
            Ok(_) | Err(sqlx::Error::Database(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Has the server end everybody's connections but this one.
async fn end_connections<DB: Base>(url: &str, kind: Kind) -> Result<()> {
    let mut conn = <DB::Connection as sqlx::Connection>::connect(url).await?;
    if kind == Kind::Postgres {
        let all = "SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity \
                   WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
        DB::texts(&mut conn, all).await?;
        return Ok(());
    }
    let all = "SELECT CAST(id AS CHAR) FROM information_schema.processlist \
               WHERE id <> CONNECTION_ID() AND command <> 'Daemon'";
    for id in DB::texts(&mut conn, all).await? {
        // It may be gone already.
        let _ = DB::execute_sql(&mut conn, &format!("KILL {id}")).await;
    }
    Ok(())
}
