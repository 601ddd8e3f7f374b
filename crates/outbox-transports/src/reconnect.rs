//! A connection that is opened on first use and reopened after it was lost.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use outbox::Unavailable;

/// Opens connections to one server.
#[async_trait]
pub(crate) trait Connect: Send + Sync + 'static {
    /// An open connection.
    type Connection: Send + Sync + 'static;

    /// Connects within its own timeout. The error contains no secrets.
    async fn connect(&self) -> Result<Self::Connection, Unavailable>;

    /// Whether the connection is still usable.
    fn is_usable(connection: &Self::Connection) -> bool;
}

type Connecting<C> = Shared<BoxFuture<'static, Result<Arc<C>, Unavailable>>>;

/// Holds the current connection. All callers wait for the same connection attempt. The attempt
/// continues after a caller stops waiting.
pub(crate) struct Reconnect<C: Connect> {
    connector: Arc<C>,
    last: Mutex<Option<Connecting<C::Connection>>>,
    /// The error of the last finished connection attempt, if it failed.
    last_error: Arc<Mutex<Option<Unavailable>>>,
}

impl<C: Connect> Reconnect<C> {
    pub(crate) fn new(connector: C) -> Self {
        Self { connector: Arc::new(connector), last: Mutex::new(None), last_error: Arc::default() }
    }

    /// Returns the connection, or the reason why the server is unavailable.
    pub(crate) async fn get(&self) -> Result<Arc<C::Connection>, Unavailable> {
        self.connecting().await
    }

    /// Returns the connection, or an error after `limit`: the error of the last finished attempt
    /// while another attempt is in progress.
    pub(crate) async fn get_within(&self, limit: Duration) -> Result<Arc<C::Connection>, Unavailable> {
        match tokio::time::timeout(limit, self.get()).await {
            Ok(connection) => connection,
            Err(_) => {
                let timed_out = || Unavailable::new(format_args!("not connected within {limit:?}"));
                Err(self.last_error().clone().unwrap_or_else(timed_out))
            }
        }
    }

    fn last_error(&self) -> MutexGuard<'_, Option<Unavailable>> {
        self.last_error.lock().expect("no panic while the lock is held")
    }

    fn connecting(&self) -> Connecting<C::Connection> {
        let mut last = self.last.lock().expect("no panic while the lock is held");
        if let Some(connecting) = &*last {
            // Polled here, since an attempt without waiting callers completes only when it is
            // polled.
            let ended = connecting.clone().now_or_never();
            if ended.is_none_or(|ended| ended.is_ok_and(|connection| C::is_usable(&connection))) {
                return connecting.clone();
            }
        }
        let connector = Arc::clone(&self.connector);
        let last_error = Arc::clone(&self.last_error);
        let task = tokio::spawn(async move {
            let connected = connector.connect().await.map(Arc::new);
            let reason = connected.as_ref().err().cloned();
            *last_error.lock().expect("no panic while the lock is held") = reason;
            connected
        });
        let connecting =
            task.map(|end| end.unwrap_or_else(|_| Err(Unavailable::new("the process is shutting down"))));
        last.insert(connecting.boxed().shared()).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    struct FakeConnector {
        attempts: AtomicUsize,
        failing: AtomicBool,
        permits: tokio::sync::Semaphore,
    }

    #[async_trait]
    impl Connect for Arc<FakeConnector> {
        type Connection = AtomicBool;

        async fn connect(&self) -> Result<AtomicBool, Unavailable> {
            self.attempts.fetch_add(1, Ordering::SeqCst);
            self.permits.acquire().await.unwrap().forget();
            if self.failing.load(Ordering::SeqCst) {
                Err(Unavailable::new("refused"))
            } else {
                Ok(AtomicBool::new(true))
            }
        }

        fn is_usable(connection: &AtomicBool) -> bool {
            connection.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn callers_share_one_attempt_and_a_lost_connection_is_reopened() {
        let permits = tokio::sync::Semaphore::new(0);
        let connector = Arc::new(FakeConnector {
            attempts: AtomicUsize::new(0),
            failing: AtomicBool::new(false),
            permits,
        });
        let reconnect = Reconnect::new(Arc::clone(&connector));
        let attempts = || connector.attempts.load(Ordering::SeqCst);

        // Both callers gave up, and only one attempt was started.
        let limit = Duration::from_millis(1);
        assert_eq!(reconnect.get_within(limit).await.unwrap_err().reason(), "not connected within 1ms");
        assert!(reconnect.get_within(limit).await.is_err());
        connector.permits.add_permits(1);
        let (one, two) = tokio::join!(reconnect.get(), reconnect.get());
        assert!(Arc::ptr_eq(&one.unwrap(), &two.unwrap()));
        let connection = reconnect.get().await.unwrap();
        assert_eq!(attempts(), 1);

        connection.store(false, Ordering::SeqCst);
        connector.failing.store(true, Ordering::SeqCst);
        connector.permits.add_permits(1);
        assert_eq!(reconnect.get().await.unwrap_err().reason(), "refused");
        assert_eq!(attempts(), 2);
        assert_eq!(
            reconnect.get_within(limit).await.unwrap_err().reason(),
            "refused",
            "while the next attempt is under way"
        );
        connector.permits.add_permits(1);
        assert_eq!(reconnect.get().await.unwrap_err().reason(), "refused");
        connector.failing.store(false, Ordering::SeqCst);
        connector.permits.add_permits(1);
        assert!(reconnect.get().await.is_ok());
        assert_eq!(attempts(), 4);
    }
}
