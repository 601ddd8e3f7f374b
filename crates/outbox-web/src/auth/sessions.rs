//! Sessions of browsers: a cookie instead of a token, and a second secret that other sites cannot read.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use subtle::ConstantTimeEq as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::token::{Role, digest, random_text};

/// The name of the cookie, with what [`cookie_name`] adds.
pub(crate) const COOKIE: &str = "outbox_session";

/// The name of the cookie of a server at this port, as the browser asks for it. Browsers keep the cookies of all ports of a host
/// together: without the port in its name two servers of one machine would overwrite each other's. With TLS, `__Host-` has the
/// browser refuse a cookie of that name which came without TLS or from another host of the domain.
pub(crate) fn cookie_name(tls: bool, port: Option<&str>) -> String {
    let prefix = if tls { "__Host-" } else { "" };
    match port {
        Some(port) => format!("{prefix}{COOKIE}_{port}"),
        None => format!("{prefix}{COOKIE}"),
    }
}

/// How long a session lasts.
pub(crate) const LASTS: Duration = Duration::from_secs(12 * 3_600);

/// How many there are at most; the oldest goes first.
const MOST: usize = 1_000;

/// All sessions, by the digest of what the cookie says: a dump of the memory opens none.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<[u8; 32], Session>>);

#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) csrf: String,
    began: Instant,
    /// Cancelled when it ends before its time.
    ended: CancellationToken,
}

impl Session {
    /// Whether this is the second secret. Takes the same time whatever the difference.
    pub(crate) fn has_csrf(&self, said: &str) -> bool {
        self.csrf.as_bytes().ct_eq(said.as_bytes()).into()
    }

    /// Returns when the session is over: signed out, pushed out by newer ones, or expired.
    pub(crate) async fn over(&self) {
        tokio::select! {
            () = self.ended.cancelled() => {}
            () = tokio::time::sleep_until(self.began + LASTS) => {}
        }
    }
}

impl Sessions {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Session>> {
        self.0.lock().expect("no one panics while holding the sessions")
    }

    /// Begins one. Returns what the cookie says, and the second secret.
    pub(crate) fn begin(&self, name: &str, role: Role) -> (String, String) {
        let (cookie, csrf) = (random_text(), random_text());
        let (began, ended) = (Instant::now(), CancellationToken::new());
        let session = Session { name: name.to_owned(), role, csrf: csrf.clone(), began, ended };
        let mut sessions = self.lock();
        sessions.retain(|_, session| session.began.elapsed() < LASTS);
        if sessions.len() >= MOST
            && let Some(oldest) = sessions.iter().min_by_key(|(_, s)| s.began).map(|(id, _)| *id)
            && let Some(session) = sessions.remove(&oldest)
        {
            session.ended.cancel();
        }
        sessions.insert(digest(&cookie), session);
        (cookie, csrf)
    }

    pub(crate) fn find(&self, cookie: &str) -> Option<Session> {
        let session = self.lock().get(&digest(cookie)).cloned()?;
        (session.began.elapsed() < LASTS).then_some(session)
    }

    pub(crate) fn end(&self, cookie: &str) {
        if let Some(session) = self.lock().remove(&digest(cookie)) {
            session.ended.cancel();
        }
    }
}

/// What the cookie of this name says, of all cookies of a request.
pub(crate) fn cookie_of<'r>(cookies: &'r str, wanted: &str) -> Option<&'r str> {
    let mut pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == wanted).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_found_by_its_cookie_until_it_ends() {
        let sessions = Sessions::default();
        let (cookie, csrf) = sessions.begin("ops", Role::Operate);
        let session = sessions.find(&cookie).unwrap();
        assert!(session.has_csrf(&csrf) && !session.has_csrf("") && !session.has_csrf(&cookie));
        assert!(sessions.find("other").is_none());
        sessions.end(&cookie);
        assert!(sessions.find(&cookie).is_none());
    }

    #[test]
    fn there_are_never_too_many() {
        let sessions = Sessions::default();
        let (first, _) = sessions.begin("first", Role::Read);
        for _ in 0..MOST {
            sessions.begin("ops", Role::Read);
        }
        assert_eq!(sessions.lock().len(), MOST);
        assert!(sessions.find(&first).is_none());
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        assert_eq!(cookie_of("a=1; outbox_session=xyz; b=2", COOKIE), Some("xyz"));
        assert_eq!(cookie_of("not_outbox_session=xyz", COOKIE), None);
        let named = cookie_name(false, Some("8080"));
        assert_eq!(
            cookie_of("outbox_session_80=a; outbox_session_8080=b; outbox_session=c", &named),
            Some("b")
        );
        assert_eq!(cookie_name(true, None), "__Host-outbox_session");
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_over_when_it_was_ended_pushed_out_or_expired() {
        let sessions = Sessions::default();
        let (cookie, _) = sessions.begin("ops", Role::Read);
        let ended = sessions.find(&cookie).unwrap();
        assert!(tokio::time::timeout(LASTS / 2, ended.over()).await.is_err(), "it goes on");
        sessions.end(&cookie);
        ended.over().await;

        let (cookie, _) = sessions.begin("ops", Role::Read);
        let pushed_out = sessions.find(&cookie).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        for _ in 0..MOST {
            sessions.begin("ops", Role::Read);
        }
        assert!(tokio::time::timeout(LASTS / 2, pushed_out.over()).await.is_ok());

        let (cookie, _) = sessions.begin("ops", Role::Read);
        let expired = sessions.find(&cookie).unwrap();
        let began = Instant::now();
        expired.over().await;
        assert!(began.elapsed() >= LASTS && sessions.find(&cookie).is_none());
    }
}
