//! The steps of a history, and their generators.

use outbox::OnDead;
use outbox::store::{Filter, Purgeable, Status};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

/// Duration of leases, in seconds.
pub const LEASE: u64 = 10;

/// Types of the events.
pub const TYPES: [&str; 2] = ["thing", "other"];

/// One step of a history. Deliveries are numbered back from the latest, stale ones included.
#[derive(Clone, Debug)]
pub enum Step {
    Write(Vec<Draft>),
    /// Writes in a relay's own process: events that are not delayed are inserted with a lease of
    /// the node.
    WriteLeased {
        owner: u8,
        drafts: Vec<Draft>,
    },
    WriteAndRollBack(Draft),
    Take {
        by: Taker,
        limit: usize,
        from: From,
        on_dead: OnDead,
        skip_recent: u64,
        skip_type: bool,
        only_type: bool,
        destinations: Destinations,
    },
    Settle {
        by: By,
        of: Vec<(usize, Kind)>,
        delete: bool,
    },
    Extend {
        owner: u8,
    },
    CountStart {
        by: By,
        of: usize,
    },
    Reap,
    Pass(u64),
    Cancel(usize),
    Skip(usize),
    Replay {
        filter: Selection,
        limit: usize,
    },
    Purge {
        what: Purgeable,
        older_than: u64,
        limit: usize,
    },
    Lead {
        owner: u8,
    },
    Resign {
        owner: u8,
        /// Number of epochs by which it is too late.
        late: i64,
    },
    Look(Selection),
}

/// Which event types have different destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destinations {
    /// None: a key is one queue.
    Not,
    /// Each type has its own.
    Both,
    /// The other type has its own; the first may go to any.
    One,
}

impl Destinations {
    pub fn destinations(self) -> BTreeMap<String, u64> {
        let types = match self {
            Destinations::Not => &[][..],
            Destinations::Both => &[0, 1],
            Destinations::One => &[1],
        };
        types.iter().map(|n| (TYPES[*n].to_owned(), *n as u64 + 5)).collect()
    }
}

#[derive(Clone, Debug)]
pub struct Draft {
    pub other_type: bool,
    pub key: Option<u8>,
    pub dedup: Option<u8>,
    pub delay: Option<u64>,
    pub expires: bool,
}

/// Node that takes.
#[derive(Clone, Copy, Debug)]
pub enum Taker {
    Lease {
        owner: u8,
        /// By a group lease, where the database has group leases.
        group_lease: bool,
        /// Continues keys behind the events that it holds of them.
        onward: bool,
    },
    /// As the leader of the table; how many events of each key it holds already.
    Leader(u8, [usize; 3]),
}

#[derive(Clone, Copy, Debug)]
pub enum From {
    Start,
    Cursor,
    Key(u8),
}

/// Node that settles a delivery.
#[derive(Clone, Copy, Debug)]
pub enum By {
    ItsTaker,
    Owner(u8),
    Leader(u8),
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Done,
    Again { after: u64, counted: bool },
    Dead { counted: bool },
    Released,
    ReleasedSuspect,
}

/// Selection of events. Positions are indexes of existing rows.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub status: Option<Status>,
    pub pending: bool,
    pub other_type: Option<bool>,
    pub key: Option<u8>,
    pub after: Option<usize>,
    pub upto: Option<usize>,
    pub older_than: Option<u64>,
    pub newer_than: Option<u64>,
    pub settled_before: Option<u64>,
    pub settled_within: Option<u64>,
}

impl Selection {
    /// The store's filter, where `seq_of` returns the sequence number of the nth row.
    pub fn filter(&self, seq_of: impl Fn(usize) -> Option<i64>) -> Filter {
        let seconds = |n: Option<u64>| n.map(Duration::from_secs);
        Filter {
            status: self.status,
            pending: self.pending,
            event_type: self.other_type.map(|other| TYPES[usize::from(other)].to_owned()),
            ordering_key: self.key.map(|n| format!("key-{n}")),
            after_seq: self.after.and_then(&seq_of),
            upto_seq: self.upto.and_then(&seq_of),
            older_than: seconds(self.older_than),
            newer_than: seconds(self.newer_than),
            settled_before: seconds(self.settled_before),
            settled_within: seconds(self.settled_within),
            ..Filter::default()
        }
    }
}

fn destinations() -> impl Strategy<Value = Destinations> {
    prop_oneof![3 => Just(Destinations::Not), 2 => Just(Destinations::Both), 1 => Just(Destinations::One)]
}

fn draft() -> impl Strategy<Value = Draft> {
    (
        proptest::bool::weighted(0.2),
        proptest::option::weighted(0.6, 0..3_u8),
        proptest::option::weighted(0.2, 0..3_u8),
        proptest::option::weighted(0.2, 1..15_u64),
        proptest::bool::weighted(0.1),
    )
        .prop_map(|(other_type, key, dedup, delay, expires)| Draft {
            other_type,
            key,
            dedup,
            delay,
            expires,
        })
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => Just(Kind::Done),
        2 => (0..8_u64, any::<bool>()).prop_map(|(after, counted)| Kind::Again { after, counted }),
        1 => any::<bool>().prop_map(|counted| Kind::Dead { counted }),
        1 => Just(Kind::Released),
        1 => Just(Kind::ReleasedSuspect),
    ]
}

fn by() -> impl Strategy<Value = By> {
    prop_oneof![
        8 => Just(By::ItsTaker),
        1 => (0..3_u8).prop_map(By::Owner),
        1 => (0..3_u8).prop_map(By::Leader),
    ]
}

fn taker() -> impl Strategy<Value = Taker> {
    let held = || prop_oneof![3 => Just(0), 1 => 1..4_usize];
    prop_oneof![
        3 => (0..3_u8, any::<bool>(), any::<bool>())
            .prop_map(|(owner, group_lease, onward)| Taker::Lease { owner, group_lease, onward }),
        1 => (0..3_u8, [held(), held(), held()]).prop_map(|(owner, held)| Taker::Leader(owner, held)),
    ]
}

fn on_dead() -> impl Strategy<Value = OnDead> {
    prop_oneof![Just(OnDead::Hold), Just(OnDead::Skip)]
}

fn selection() -> impl Strategy<Value = Selection> {
    let status = prop_oneof![Just(Status::New), Just(Status::Done), Just(Status::Retry), Just(Status::Dead)];
    let time = || proptest::option::weighted(0.15, 0..12_u64);
    (
        (proptest::option::weighted(0.3, status), proptest::bool::weighted(0.2)),
        (proptest::option::weighted(0.3, any::<bool>()), proptest::option::weighted(0.3, 0..3_u8)),
        (proptest::option::weighted(0.2, 0..8_usize), proptest::option::weighted(0.2, 0..8_usize)),
        (time(), time(), time(), time()),
    )
        .prop_map(|((status, pending), (other_type, key), (after, upto), times)| Selection {
            status,
            pending,
            other_type,
            key,
            after,
            upto,
            older_than: times.0,
            newer_than: times.1,
            settled_before: times.2,
            settled_within: times.3,
        })
}

/// Steps of every kind, or only steps about leases: then much more happens to the same few events.
pub fn history() -> impl Strategy<Value = Vec<Step>> {
    prop_oneof![prop::collection::vec(step(), 1..30), prop::collection::vec(step_of_leases(), 1..30)]
}

/// A step about leases, of one key or of none.
fn step_of_leases() -> impl Strategy<Value = Step> {
    let key = prop_oneof![3 => Just(Some(0)), 1 => Just(None)];
    let draft = (key, proptest::bool::weighted(0.3)).prop_map(|(key, other_type)| Draft {
        other_type,
        key,
        dedup: None,
        delay: None,
        expires: false,
    });
    let taker = (0..3_u8, proptest::bool::weighted(0.8), proptest::bool::weighted(0.8))
        .prop_map(|(owner, group_lease, onward)| Taker::Lease { owner, group_lease, onward });
    let from =
        prop_oneof![4 => Just(From::Start), 1 => Just(From::Cursor), 1 => (0..2_u8).prop_map(From::Key)];
    let limit = prop_oneof![2 => Just(1), 1 => Just(2), 2 => Just(10)];
    let kind = prop_oneof![6 => Just(Kind::Done), 1 => kind()];
    let by = prop_oneof![2 => by(), 1 => (0..3_u8).prop_map(By::Owner)];
    prop_oneof![
        4 => prop::collection::vec(draft, 1..3).prop_map(Step::Write),
        8 => (taker, limit, from, destinations()).prop_map(|(by, limit, from, destinations)| Step::Take {
            destinations,
            by,
            limit,
            from,
            on_dead: OnDead::Hold,
            skip_recent: 0,
            skip_type: false,
            only_type: false,
        }),
        6 => (by, prop::collection::vec((0..5_usize, kind), 1..3), any::<bool>())
            .prop_map(|(by, of, delete)| Step::Settle { by, of, delete }),
        2 => (0..3_u8).prop_map(|owner| Step::Extend { owner }),
        4 => (1..=LEASE).prop_map(Step::Pass),
        1 => Just(Step::Reap),
        1 => (0..4_usize).prop_map(Step::Cancel),
        1 => (0..3_u8).prop_map(|owner| Step::Lead { owner }),
        1 => (0..3_u8).prop_map(|owner| Step::Resign { owner, late: 0 }),
    ]
}

/// A step of any kind.
fn step() -> impl Strategy<Value = Step> {
    let owner = 0..3_u8;
    let from =
        prop_oneof![3 => Just(From::Start), 1 => Just(From::Cursor), 1 => (0..3_u8).prop_map(From::Key)];
    let skip_recent = prop_oneof![4 => Just(0), 1 => Just(3)];
    let limit = || prop_oneof![1 => Just(1), 2 => Just(3), 2 => Just(10)];
    let what = prop_oneof![
        Just(Purgeable::Done),
        Just(Purgeable::Dead),
        Just(Purgeable::Finished),
        Just(Purgeable::Everything)
    ];
    let drafts = || prop::collection::vec(draft(), 1..5);
    prop_oneof![
        6 => drafts().prop_map(Step::Write),
        2 => (owner.clone(), drafts()).prop_map(|(owner, drafts)| Step::WriteLeased { owner, drafts }),
        1 => draft().prop_map(Step::WriteAndRollBack),
        8 => (taker(), limit(), from, on_dead(), skip_recent, proptest::bool::weighted(0.1), proptest::bool::weighted(0.2),
            destinations()).prop_map(
            |(by, limit, from, on_dead, skip_recent, skip_type, only_type, destinations)|
                Step::Take { by, limit, from, on_dead, skip_recent, skip_type, only_type, destinations }),
        8 => (by(), prop::collection::vec((0..8_usize, kind()), 1..5), any::<bool>())
            .prop_map(|(by, of, delete)| Step::Settle { by, of, delete }),
        1 => owner.clone().prop_map(|owner| Step::Extend { owner }),
        1 => (by(), 0..8_usize).prop_map(|(by, of)| Step::CountStart { by, of }),
        1 => Just(Step::Reap),
        4 => prop_oneof![1..4_u64, Just(LEASE)].prop_map(Step::Pass),
        1 => (0..8_usize).prop_map(Step::Cancel),
        1 => (0..8_usize).prop_map(Step::Skip),
        2 => (selection(), 1..4_usize).prop_map(|(selection, limit)| Step::Replay { filter: selection, limit }),
        1 => (what, 0..12_u64, prop_oneof![Just(1_000), 1..3_usize])
            .prop_map(|(what, older_than, limit)| Step::Purge { what, older_than, limit }),
        3 => owner.clone().prop_map(|owner| Step::Lead { owner }),
        2 => (owner, prop_oneof![3 => Just(0), 1 => Just(1)]).prop_map(|(owner, late)| Step::Resign { owner, late }),
        2 => selection().prop_map(Step::Look),
    ]
}
