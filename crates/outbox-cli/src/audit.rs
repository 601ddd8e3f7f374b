//! Audit entries for changes at the command line, written before the change, with the operating
//! system's user.

use anyhow::Result;
use outbox::store::{AuditEntry, Filter};
use outbox::{EventId, OpenAudit};
use serde_json::{Map, Value};

use crate::target::Target;

impl Target {
    /// Writes the audit entry of a change that is about to be made. If that fails, the change must
    /// not be made.
    pub(crate) async fn begin_audit(
        &self,
        action: &str,
        target: impl Into<String>,
        details: Option<Value>,
    ) -> Result<OpenAudit> {
        let entry = AuditEntry {
            actor: user::current(),
            via: "cli".to_owned(),
            action: action.to_owned(),
            target: Some(target.into()),
            details: details.map(|details| details.to_string()),
        };
        self.admin().begin_audit(entry).await.map_err(|error| self.explain(error))
    }

    /// Makes a change to one event, with its audit entry. Returns whether the event was in a state
    /// that allows the change; `refusal` is the outcome in the audit if not.
    pub(crate) async fn change_one(
        &self,
        action: &str,
        id: &EventId,
        refusal: &str,
        change: impl Future<Output = outbox::Result<bool>>,
    ) -> Result<bool> {
        let audit = self.begin_audit(action, id.as_str(), None).await?;
        match change.await {
            Ok(true) => audit.finish("done", Some(1)).await,
            Ok(false) => {
                audit.finish(&format!("refused: the event {refusal}"), None).await;
                return Ok(false);
            }
            Err(error) => {
                audit.finish(&format!("failed: {error}"), None).await;
                return Err(self.explain(error));
            }
        }
        Ok(true)
    }
}

/// Selected events of a change, for its audit entry.
pub(crate) fn selection(filter: &Filter) -> Value {
    let texts = [
        ("event_type", &filter.event_type),
        ("aggregate_type", &filter.aggregate_type),
        ("aggregate_id", &filter.aggregate_id),
        ("tenant_id", &filter.tenant_id),
        ("ordering_key", &filter.ordering_key),
        ("correlation_id", &filter.correlation_id),
    ];
    let mut fields: Map<String, Value> = texts
        .into_iter()
        .filter_map(|(name, text)| Some((name.to_owned(), text.as_deref()?.into())))
        .collect();
    for (name, age) in [("older_than", filter.settled_before), ("newer_than", filter.settled_within)] {
        fields.extend(age.map(|age| (name.to_owned(), format!("{age:?}").into())));
    }
    fields.extend(filter.after_seq.map(|seq| ("after".to_owned(), seq.into())));
    Value::Object(fields)
}

/// Name of the user who runs the command.
mod user {
    use std::fs;

    /// Login uid of the kernel where no login was recorded.
    const UNSET: u32 = u32::MAX;

    /// Describes the current user, as in `ada (uid 1000)`. The numbers come from the kernel; names
    /// are looked up. `SUDO_USER`, which every user may set, is marked as such, and used only if
    /// the kernel has no login uid.
    pub(super) fn current() -> String {
        #[cfg(target_os = "linux")]
        {
            let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
            let login =
                fs::read_to_string("/proc/self/loginuid").ok().and_then(|text| text.trim().parse().ok());
            if let Some(uid) = real_uid(&status) {
                let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
                let claimed = std::env::var("SUDO_USER").ok().filter(|name| !name.is_empty());
                return describe(uid, login.filter(|uid| *uid != UNSET), claimed.as_deref(), &passwd);
            }
        }
        // Elsewhere `id` gives the user; without `id`, the environment does, and the entry says so.
        let id = |flag: &str| {
            let output = std::process::Command::new("id").arg(flag).output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty() && output.status.success())
        };
        match (id("-unr"), id("-ur")) {
            (Some(name), Some(uid)) => format!("{name} (uid {uid})"),
            (None, Some(uid)) => format!("uid {uid}"),
            _ => {
                let claimed = ["USER", "USERNAME"].into_iter().find_map(|name| std::env::var(name).ok());
                claimed.map_or_else(|| "unknown".to_owned(), |name| format!("{name} (by environment)"))
            }
        }
    }

    /// First number after `Uid:`.
    fn real_uid(status: &str) -> Option<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        line.split_whitespace().next()?.parse().ok()
    }

    fn describe(uid: u32, login: Option<u32>, claimed: Option<&str>, passwd: &str) -> String {
        let user = named(uid, passwd);
        match (login, claimed) {
            (Some(login), _) if login != uid => format!("{user}, logged in as {}", named(login, passwd)),
            (None, Some(name)) => format!("{user}, SUDO_USER={name}"),
            _ => user,
        }
    }

    fn named(uid: u32, passwd: &str) -> String {
        let name = passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
        });
        match name {
            Some(name) => format!("{name} (uid {uid})"),
            None => format!("uid {uid}"),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nada:x:1000:1000::/home/ada:/bin/sh\n";

        #[test]
        fn a_user_is_described_by_number_and_name() {
            for (uid, login, claimed, text) in [
                (1000, Some(1000), None, "ada (uid 1000)"),
                (1000, None, None, "ada (uid 1000)"),
                (4711, None, None, "uid 4711"),
                (0, Some(1000), Some("eve"), "root (uid 0), logged in as ada (uid 1000)"),
                (0, None, Some("ada"), "root (uid 0), SUDO_USER=ada"),
            ] {
                assert_eq!(describe(uid, login, claimed, PASSWD), text);
            }
        }

        #[test]
        fn the_real_uid_is_read_from_the_status_of_the_process() {
            assert_eq!(real_uid("Name:\toutbox\nUid:\t1000\t0\t0\t0\n"), Some(1000));
            assert_eq!(real_uid(""), None);
        }
    }
}
