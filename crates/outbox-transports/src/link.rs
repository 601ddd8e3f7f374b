//! A connection that is opened when it is needed, and anew when it is lost.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};

/// How to connect.
#[async_trait]
pub(crate) trait Dial: Send + Sync + 'static {
    /// A connection.
    type Line: Send + Sync + 'static;

    /// Connects, within a time of its own. Says why it could not, without secrets.
    async fn dial(&self) -> Result<Self::Line, String>;

    /// Whether the connection can still be used.
    fn is_up(line: &Self::Line) -> bool;
}

type Dialing<L> = Shared<BoxFuture<'static, Result<Arc<L>, String>>>;

/// Keeps the connection. Whoever asks while it is being opened waits for the same attempt, and whoever gives up waiting does
/// not end it.
pub(crate) struct Link<D: Dial> {
    dial: Arc<D>,
    last: Mutex<Option<Dialing<D::Line>>>,
    /// Why the last finished attempt to connect failed, if it did.
    failure: Arc<Mutex<Option<String>>>,
}

impl<D: Dial> Link<D> {
    pub(crate) fn new(dial: D) -> Self {
        Self { dial: Arc::new(dial), last: Mutex::new(None), failure: Arc::default() }
    }

    /// The connection, or why there is none.
    pub(crate) async fn get(&self) -> Result<Arc<D::Line>, String> {
        self.dialing().await
    }

    /// The connection, or why there is none after this time: the reason of the last finished attempt
    /// while another one is still under way.
    pub(crate) async fn within(&self, limit: Duration) -> Result<Arc<D::Line>, String> {
        match tokio::time::timeout(limit, self.get()).await {
            Ok(line) => line,
            Err(_) => {
                Err(self.failure().clone().unwrap_or_else(|| format!("not connected within {limit:?}")))
            }
        }
    }

    fn failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().expect("nothing panics while it is held")
    }

    fn dialing(&self) -> Dialing<D::Line> {
        let mut last = self.last.lock().expect("nothing panics while it is held");
        if let Some(dialing) = &*last {
            // What has ended without anybody watching ends when it is looked at.
            let ended = dialing.clone().now_or_never();
            if ended.is_none_or(|ended| ended.is_ok_and(|line| D::is_up(&line))) {
                return dialing.clone();
            }
        }
        let dial = Arc::clone(&self.dial);
        let failure = Arc::clone(&self.failure);
        let task = tokio::spawn(async move {
            let dialled = dial.dial().await.map(Arc::new);
            let reason = dialled.as_ref().err().cloned();
            *failure.lock().expect("nothing panics while it is held") = reason;
            dialled
        });
        let dialing = task.map(|end| end.unwrap_or_else(|_| Err("the process is ending".to_owned())));
        last.insert(dialing.boxed().shared()).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    struct Phone {
        calls: AtomicUsize,
        busy: AtomicBool,
        slow: tokio::sync::Semaphore,
    }

    #[async_trait]
    impl Dial for Arc<Phone> {
        type Line = AtomicBool;

        async fn dial(&self) -> Result<AtomicBool, String> {
            self.calls.fetch_add(1, Ordering::SeqCst);
            self.slow.acquire().await.unwrap().forget();
            if self.busy.load(Ordering::SeqCst) { Err("busy".to_owned()) } else { Ok(AtomicBool::new(true)) }
        }

        fn is_up(line: &AtomicBool) -> bool {
            line.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn all_wait_for_one_attempt_and_a_lost_line_is_opened_anew() {
        let slow = tokio::sync::Semaphore::new(0);
        let phone = Arc::new(Phone { calls: AtomicUsize::new(0), busy: AtomicBool::new(false), slow });
        let link = Link::new(Arc::clone(&phone));
        let calls = || phone.calls.load(Ordering::SeqCst);

        // Nobody waits any longer, and still it is not begun again.
        let soon = Duration::from_millis(1);
        assert_eq!(link.within(soon).await.unwrap_err(), "not connected within 1ms");
        assert!(link.within(soon).await.is_err());
        phone.slow.add_permits(1);
        let (one, two) = tokio::join!(link.get(), link.get());
        assert!(Arc::ptr_eq(&one.unwrap(), &two.unwrap()));
        let line = link.get().await.unwrap();
        assert_eq!(calls(), 1);

        line.store(false, Ordering::SeqCst);
        phone.busy.store(true, Ordering::SeqCst);
        phone.slow.add_permits(1);
        assert_eq!(link.get().await.unwrap_err(), "busy");
        assert_eq!(calls(), 2);
        assert_eq!(link.within(soon).await.unwrap_err(), "busy", "while the next attempt is under way");
        phone.slow.add_permits(1);
        assert_eq!(link.get().await.unwrap_err(), "busy");
        phone.busy.store(false, Ordering::SeqCst);
        phone.slow.add_permits(1);
        assert!(link.get().await.is_ok());
        assert_eq!(calls(), 4);
    }
}
