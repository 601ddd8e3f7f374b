//! Reading an outbox of any size: pages, counts, errors.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Admin, purge_attempts, purge_audits};
use crate::error::Result;
use crate::event::EventId;
use crate::store::{
    Attempt, BlockedKeys, Breakdown, EventMetadata, Node, NodeId, Overview, Page, PageRequest, Released,
    StatusGroup, UnroutedEvents,
};

impl Admin {
    /// Events page by page, without their payloads. The run time does not depend on the size of the
    /// table.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use outbox::Event;
    /// use outbox::store::{Filter, PageRequest, StatusGroup};
    ///
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// outbox.send_all((0..100).map(|n| Event::new(if n % 10 == 0 { "rare" } else { "common" }).json(&n))).await?;
    ///
    /// let filter = Filter { event_type: Some("rare".to_owned()), ..Filter::default() };
    /// let mut ask = PageRequest { status_group: StatusGroup::Pending, filter, limit: 4, scan_limit: 30, ..PageRequest::default() };
    /// let mut found = 0;
    /// loop {
    ///     let page = outbox.admin().page(&ask).await?;
    ///     found += page.rows.len();                 // few, or none, where few match
    ///     let Some(next) = page.next else { break };
    ///     ask.after = Some(next);
    /// }
    /// assert_eq!(found, 10);
    /// # Ok(()) }
    /// ```
    pub async fn page(&self, ask: &PageRequest) -> Result<Page> {
        self.store.page(ask).await
    }

    /// One event without the contents of its payload and headers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # use outbox::Event;
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let id = outbox.send(Event::new("e").json_text("[1, 2, 3]")).await?.id;
    ///
    /// let event = outbox.admin().metadata(&id).await?.expect("it is there");
    /// assert_eq!((event.row.payload_bytes, event.content_type.as_str()), (9, "application/json"));
    /// # Ok(()) }
    /// ```
    pub async fn metadata(&self, id: &EventId) -> Result<Option<EventMetadata>> {
        self.store.metadata(id).await
    }

    /// Counts of the table by state. Counting stops at `most`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # use outbox::Event;
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// outbox.send_all((0..30).map(|n| Event::new("e").json(&n))).await?;
    ///
    /// let overview = outbox.admin().overview(20).await?;
    /// assert_eq!((overview.due.count, overview.due.more), (20, true));     // "20 or more"
    /// assert_eq!((overview.dead.count, overview.dead.more), (0, false));
    /// # Ok(()) }
    /// ```
    pub async fn overview(&self, most: u64) -> Result<Overview> {
        self.store.overview(most).await
    }

    /// Counts the events of a status group per type, the most frequent first. Reads the first
    /// `scan_limit` events of the group.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # use outbox::Event;
    /// use outbox::store::StatusGroup;
    ///
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// outbox.send_all((0..9).map(|n| Event::new(if n < 3 { "a" } else { "b" }).json(&n))).await?;
    ///
    /// let pending = outbox.admin().breakdown(StatusGroup::Pending, 10_000).await?;
    /// assert_eq!((pending.types[0].event_type.as_str(), pending.types[0].count), ("b", 6));
    /// # Ok(()) }
    /// ```
    pub async fn breakdown(&self, status_group: StatusGroup, scan_limit: usize) -> Result<Breakdown> {
        self.store.breakdown(status_group, scan_limit).await
    }

    /// Counts pending events that no running relay routes, by type. They stay pending until a relay
    /// that routes them runs. Reads the first `scan_limit` pending events.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use outbox::{Context, Event, Outbox};
    ///
    /// let outbox = Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let relay = outbox.multi_node().on_type("order.placed", async |_: Context| { /* … */ }).start().await?;
    /// outbox.send(Event::new("order.refunded").json(&42)).await?;
    ///
    /// let unrouted = outbox.admin().unrouted(10_000).await?;
    /// assert_eq!((unrouted.types[0].event_type.as_str(), unrouted.types[0].count), ("order.refunded", 1));
    /// assert_eq!(unrouted.relays, [relay.node().clone()]);
    /// # relay.stop().await
    /// # }
    /// ```
    pub async fn unrouted(&self, scan_limit: usize) -> Result<UnroutedEvents> {
        self.store.unrouted(scan_limit).await
    }

    /// The last failed attempts of an event, oldest first. They are kept for 30 days.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use outbox::{Event, Failure};
    ///
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let relay = outbox.single_node().on_type("e", async || Err::<(), _>(Failure::dead("no such customer"))).start().await?;
    /// let id = outbox.send(Event::new("e").json(&())).await?.id;
    /// relay.idle().await?;
    ///
    /// let attempts = outbox.admin().attempts(&id, 10).await?;
    /// assert_eq!((attempts[0].fatal, attempts[0].error.as_str()), (true, "no such customer"));
    /// # relay.stop().await
    /// # }
    /// ```
    pub async fn attempts(&self, id: &EventId, limit: usize) -> Result<Vec<Attempt>> {
        self.store.attempts(id, limit).await
    }

    /// Deletes failed attempts older than this, 500 at a time. Returns how many.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let week = std::time::Duration::from_secs(7 * 86_400);
    /// assert_eq!(outbox.admin().purge_attempts(week).await?, 0);
    /// # Ok(()) }
    /// ```
    pub async fn purge_attempts(&self, older_than: Duration) -> Result<u64> {
        purge_attempts(&*self.store, older_than, 500, &CancellationToken::new()).await
    }

    /// Deletes audit entries older than this, 500 at a time. Returns how many. Audit entries are
    /// kept for ever unless this method or
    /// [`PurgeSettings::audit_retention`](crate::PurgeSettings::audit_retention) deletes them; the
    /// generated grants of a relay do not allow it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let year = std::time::Duration::from_secs(365 * 86_400);
    /// assert_eq!(outbox.admin().purge_audit(year).await?, 0);
    /// # Ok(()) }
    /// ```
    pub async fn purge_audit(&self, older_than: Duration) -> Result<u64> {
        purge_audits(&*self.store, older_than, 500, &CancellationToken::new()).await
    }

    /// Keys whose first dead event blocks later events, among the first `scan_limit` dead events.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use outbox::{Event, Failure};
    ///
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let relay = outbox.ordered().on_type("e", async || Err::<(), _>(Failure::dead("no"))).start().await?;
    /// outbox.send_all((0..3).map(|n| Event::new("e").ordering_key("order-42").json(&n))).await?;
    /// relay.idle().await?;
    ///
    /// let blocked = outbox.admin().blocked_keys(1_000, 10).await?;
    /// assert_eq!((blocked.keys[0].key.as_str(), blocked.keys[0].waiting.count), ("order-42", 2));
    /// # relay.stop().await
    /// # }
    /// ```
    pub async fn blocked_keys(&self, scan_limit: usize, limit: usize) -> Result<BlockedKeys> {
        self.store.blocked_keys(scan_limit, limit).await
    }

    /// Relays with a presence row, with their announced state and counters; the most recently seen
    /// first.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// for node in outbox.admin().nodes().await? {
    ///     println!("{}: {} delivered", node.node, node.state.counts.delivered);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn nodes(&self) -> Result<Vec<Node>> {
        self.store.nodes().await
    }

    /// Releases everything that a node holds: its leases on events, and the leadership of the whole
    /// table. Other relays deliver those events immediately.
    ///
    /// Relays do this by themselves for a relay that has vanished. A relay that still runs handles
    /// the events it has in memory until its next renewal: meanwhile events may be handled twice,
    /// and out of the order of their keys.
    pub async fn release_node(&self, node: &NodeId) -> Result<Released> {
        self.store.release_node(node).await
    }
}
