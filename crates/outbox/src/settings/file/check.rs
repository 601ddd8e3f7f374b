//! Checks across several settings.

use std::time::Duration;

use super::groups::Groups;
use super::mode::WrittenMode;
use super::reader::Reader;
use crate::relay::Mode;

/// Minimum retention for events that may be undelivered: the reader of the table needs some time
/// for them.
const SHORTEST: Duration = Duration::from_secs(60);

impl Groups {
    /// Reads all groups.
    pub fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            general: reader.general(),
            dispatcher: reader.group("dispatcher"),
            poller: reader.group("poller"),
            claim_locking: reader.group("claim-locking"),
            retry: reader.group("retry"),
            purge: reader.group("purge"),
            log: reader.group("log"),
            backoff: reader.group("backoff"),
            metrics: reader.group("metrics"),
        }
    }

    /// Reports mistakes that concern several settings.
    pub fn check(&self, reader: &mut Reader<'_>) {
        self.check_retry(reader);
        self.check_claim_locking(reader);
        self.check_purge(reader);
    }

    fn mode_name(&self) -> &'static str {
        WrittenMode(self.mode()).name()
    }

    fn check_retry(&self, reader: &mut Reader<'_>) {
        if let (Some(base), Some(max)) = (self.retry.base_delay, self.retry.max_delay)
            && base.0 > max.0
        {
            let reason = format!("`base-delay` ({base}) is more than `max-delay` ({max})");
            reader.wrong_setting("retry", "base-delay", reason);
        }
    }

    fn check_claim_locking(&self, reader: &mut Reader<'_>) {
        let leases = matches!(self.mode(), Mode::MultiNode | Mode::Ordered);
        if leases && self.claim_locking.enabled == Some(false) {
            let mode = self.mode_name();
            let reason = format!(
                "`mode = \"{mode}\"` needs leases, otherwise two relays would deliver the same events: leave `enabled` out, or use \
                 `mode = \"single-node\"`"
            );
            reader.wrong_setting("claim-locking", "enabled", reason);
        }
    }

    fn check_purge(&self, reader: &mut Reader<'_>) {
        let purge = &self.purge;
        if purge.delete_undelivered != Some(true) {
            return;
        }
        let wrong = if self.mode() == Mode::WriterOnly {
            purge.retention.filter(|time| time.0 < SHORTEST).map(|retention| {
                format!(
                    "`retention` ({retention}) is too short for deleting undelivered events: use at least 1m"
                )
            })
        } else {
            let mode = self.mode_name();
            Some(format!(
                "for `mode = \"writer-only\"` alone: `{mode}` would delete events before it delivers them"
            ))
        };
        if let Some(reason) = wrong {
            reader.wrong_setting("purge", "delete-undelivered", reason);
        }
    }
}
