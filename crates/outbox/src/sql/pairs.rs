//! Where the pairs of the log stand.

use std::time::Duration;

use async_trait::async_trait;

use super::dialect::Database;
use super::store::SqlStore;
use crate::error::{Error, Result};
use crate::log::{Move, PairId, PairState, PairStatus, PairStore, Position, Roll};
use crate::store::NodeId;

fn none<T>() -> Result<T> {
    Err(Error::Store("this store keeps no pairs".to_owned()))
}

#[async_trait]
impl<DB: Database> PairStore for SqlStore<DB> {
    async fn register(&self, _: &[(PairId, bool)]) -> Result<()> {
        none()
    }

    async fn tend(&self, _: &NodeId, _: Duration) -> Result<Roll> {
        none()
    }

    async fn pairs(&self) -> Result<Vec<PairState>> {
        none()
    }

    async fn claim(&self, _: &NodeId, _: Duration, _: &[PairId]) -> Result<Vec<PairState>> {
        none()
    }

    async fn save(&self, _: &NodeId, _: &[Move]) -> Result<Vec<PairId>> {
        none()
    }

    async fn release(&self, _: &NodeId, _: &[(PairId, i64)]) -> Result<()> {
        none()
    }

    async fn leave(&self, _: &NodeId) -> Result<()> {
        none()
    }

    async fn set_status(&self, _: &str, _: Option<&str>, _: PairStatus) -> Result<u64> {
        none()
    }

    async fn reset(&self, _: &PairId, _: Position) -> Result<bool> {
        none()
    }
}
