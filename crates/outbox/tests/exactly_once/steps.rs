//! Many joins, and workers that settle their steps.

use std::collections::HashMap;
use std::time::Duration;

use outbox::store::JoinFilter;
use outbox::{Event, EventId, JoinId, JoinWait, NewJoin, NodeId, Outbox};

use crate::common::{Backend, TestDb};
use crate::crashing::Role;

/// Approximate number of steps of a join.
const STEPS: usize = 100;

fn joins(members: usize) -> usize {
    (members / STEPS).max(3)
}

fn step(n: usize) -> EventId {
    EventId::from(format!("step-{n}"))
}

/// Joins that an event is a step of: some events are in two.
fn joins_of(n: usize, joins: usize) -> Vec<usize> {
    if n.is_multiple_of(5) { vec![n % joins, (n + 1) % joins] } else { vec![n % joins] }
}

/// Whether the step is attached by the worker that handles it, and not before.
fn is_late(n: usize) -> bool {
    n % 3 == 1
}

/// Whether the step is dead-lettered.
fn is_doomed(n: usize) -> bool {
    n % 20 == 7
}

/// Writes the steps, starts the joins with their follow-ups, and attaches the steps that are not
/// late.
pub async fn fan_out<DB: Backend>(db: &TestDb<DB>, members: usize) {
    let joins = joins(members);
    let mut steps: Vec<Vec<usize>> = vec![Vec::new(); joins];
    for n in 0..members {
        joins_of(n, joins).into_iter().for_each(|join| steps[join].push(n));
    }
    for some in (0..members).collect::<Vec<_>>().chunks(1_000) {
        let events = some.iter().map(|n| Event::new("step").id(step(*n)).json(n));
        db.outbox.send_all(events).await.unwrap();
    }
    for (number, steps) in steps.iter().enumerate() {
        let mut tx = db.outbox.begin().await.unwrap();
        let mut joins = tx.joins();
        let expected = u32::try_from(steps.len()).unwrap();
        let join = joins.start(NewJoin::of(expected).group(format!("join-{number}"))).await.unwrap();
        let early: Vec<EventId> = steps.iter().filter(|n| !is_late(**n)).map(|n| step(*n)).collect();
        joins.attach_all(&join.id, &early).await.unwrap();
        let follows = |event_type: &str| Event::new(event_type).json(&number);
        let wait = JoinWait::new().then(follows("then")).if_failed(follows("sorry"));
        joins.wait(&join.id, wait).await.unwrap();
        tx.commit().await.unwrap();
    }
}

/// Ids of the joins, by their numbers.
async fn ids<DB: Backend>(outbox: &Outbox<DB>) -> HashMap<usize, JoinId> {
    let mut ids = HashMap::new();
    let mut filter = JoinFilter::default();
    loop {
        let page = outbox.admin().joins(&filter, 1_000).await.unwrap();
        let Some(last) = page.last() else { return ids };
        filter.after = Some(last.id.clone());
        for join in page {
            let number = join.grouping_key.as_deref().and_then(|key| key.strip_prefix("join-")?.parse().ok());
            ids.insert(number.unwrap(), join.id);
        }
    }
}

async fn attach<DB: Backend>(outbox: &Outbox<DB>, ids: &HashMap<usize, JoinId>, n: usize) {
    for join in joins_of(n, ids.len()) {
        outbox.joins().attach(&ids[&join], &step(n)).await.unwrap();
    }
}

/// Works until no event is pending, and settles carelessly: everything twice, and some of it by a
/// node that is not the holder.
pub async fn work<DB: Backend>(outbox: &Outbox<DB>, mut role: Role) {
    let ids = ids(outbox).await;
    let queue = outbox.queue();
    let (me, other) = (NodeId::generate(), NodeId::generate());
    loop {
        let items = queue.claim(&me, Duration::from_secs(10), 25).await.unwrap();
        if items.is_empty() {
            if outbox.admin().backlog().await.unwrap().pending == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        let (mut done, mut dead, mut late) = (Vec::new(), Vec::new(), Vec::new());
        for item in &items {
            let n: usize = item.payload().unwrap();
            let is_step = *item.event_type() == "step";
            role.progress();
            if is_step && is_late(n) {
                if rand::random() { attach(outbox, &ids, n).await } else { late.push(n) }
            }
            if is_step && is_doomed(n) { dead.push(item.id()) } else { done.push(item.id()) }
        }
        assert_eq!(queue.ack(&other, done.iter().copied()).await.unwrap(), 0);
        for _ in 0..2 {
            queue.ack(&me, done.iter().copied()).await.unwrap();
            queue.fail(&me, dead.iter().copied(), "doomed").await.unwrap();
        }
        for n in late {
            role.progress();
            attach(outbox, &ids, n).await;
        }
    }
}

/// Attaches the steps that killed workers did not attach, as a restarted worker would, and
/// compares.
pub async fn check<DB: Backend>(db: &TestDb<DB>, members: usize) {
    for (number, id) in ids(&db.outbox).await {
        let is_of = |n: &usize| is_late(*n) && joins_of(*n, joins(members)).contains(&number);
        let late: Vec<EventId> = (0..members).filter(is_of).map(step).collect();
        db.outbox.joins().attach_all(&id, &late).await.unwrap();
    }
    let members_of = |status: &str| {
        format!(
            "(SELECT count(*) FROM {{t}}_join_member m WHERE m.join_id = j.join_id AND m.status = {status})"
        )
    };
    let (completed, failed) = (members_of("1"), members_of("2"));
    for (problem, sql) in [
        (
            "counters differ from steps",
            format!(
                "SELECT count(*) FROM {{t}}_join j WHERE j.completed_steps <> {completed} OR j.failed_steps <> {failed} \
                 OR j.attached_steps <> j.expected_steps"
            ),
        ),
        (
            "steps differ from events",
            "SELECT count(*) FROM {t}_join_member m JOIN {t} e ON e.event_id = m.event_id \
             WHERE m.status <> CASE e.status WHEN 1 THEN 1 WHEN 3 THEN 2 ELSE 0 END"
                .to_owned(),
        ),
        (
            "joins are not closed as they should be",
            "SELECT count(*) FROM {t}_join WHERE status <> CASE WHEN failed_steps > 0 THEN 2 ELSE 1 END"
                .to_owned(),
        ),
        (
            "steps are not what they should be",
            "SELECT count(*) FROM {t} WHERE event_type = 'step' AND status NOT IN (1, 3)".to_owned(),
        ),
    ] {
        assert_eq!(db.number(&sql).await, 0, "{problem}");
    }
    let doomed = i64::try_from((0..members).filter(|n| is_doomed(*n)).count()).unwrap();
    // Besides those, an event that was claimed by three killed workers is dead-lettered as the
    // cause of the crashes.
    let dead_lettered = db.number("SELECT count(*) FROM {t} WHERE last_error LIKE '%never came back'").await;
    let dead = db.number("SELECT count(*) FROM {t} WHERE status = 3").await;
    assert!(
        (doomed..=doomed + dead_lettered).contains(&dead),
        "{dead} are dead, of {doomed} doomed and {dead_lettered} dead-lettered as poison"
    );
    assert!(
        dead_lettered <= i64::try_from(members / 1_000 + 1).unwrap(),
        "{dead_lettered} were dead-lettered as poison"
    );
    let joins = i64::try_from(joins(members)).unwrap();
    let follows = "FROM {t} WHERE event_type IN ('then', 'sorry')";
    assert_eq!(db.number(&format!("SELECT count(*) {follows}")).await, joins, "one follows each");
    let sorry = "SELECT count(*) FROM {t} WHERE event_type = 'sorry'";
    let failed = "SELECT count(*) FROM {t}_join WHERE status = 2";
    assert_eq!(db.number(sorry).await, db.number(failed).await);
}
