//! Tests of a pool's disk: each rule on a small world, and all together against a model.

use super::*;
use crate::layout::{LayoutNotice, Refusal};
use world::{EXTENT, Job, SUB, World};

mod direct;
mod model;
mod relocation;
mod rules;
mod world;
