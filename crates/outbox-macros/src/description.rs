//! The attributes of one event type, resolved against the fields of its payload.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{Error, Fields, Path, Result};

use crate::attributes::{Aggregate, Attributes};
use crate::template::Template;

/// One event type: a struct, or a variant with the attributes of its enum.
pub(crate) struct Description<'a> {
    pub(crate) event_type: String,
    pub(crate) own: &'a Attributes,
    /// The attributes of the enum, which those of the variant override.
    pub(crate) shared: Option<&'a Attributes>,
    pub(crate) fields: &'a Fields,
    /// The struct or the variant, for errors.
    pub(crate) owner: String,
}

impl Description<'_> {
    /// Implements `Message` for a type with these fields.
    pub(crate) fn message_impl(&self, krate: &Path, target: &impl ToTokens) -> Result<TokenStream> {
        let event_type = &self.event_type;
        let aggregate_type =
            self.routed_aggregate().map(|kind| quote! { const AGGREGATE_TYPE: &'static str = #kind; });
        let version = self.own.version.map(|version| quote! { const VERSION: u32 = #version; });
        let upcast = self.upcast(krate)?;
        let describe = self.describe(krate)?;
        Ok(quote! {
            #[automatically_derived]
            impl #krate::Message for #target {
                const TYPE: &'static str = #event_type;
                #aggregate_type
                #version
                #upcast
                #describe
            }
        })
    }

    /// The aggregate of the variant, or of its enum.
    pub(crate) fn aggregate(&self) -> Option<&Aggregate> {
        self.either(|attributes| attributes.aggregate.as_ref())
    }

    /// The aggregate type that handlers are registered by, if not for any.
    pub(crate) fn routed_aggregate(&self) -> Option<&str> {
        self.aggregate().filter(|aggregate| aggregate.is_routed).map(|aggregate| &*aggregate.kind)
    }

    fn either<'a, T>(&'a self, get: impl Fn(&'a Attributes) -> Option<&'a T>) -> Option<&'a T> {
        get(self.own).or_else(|| self.shared.and_then(get))
    }

    fn upcast(&self, krate: &Path) -> Result<TokenStream> {
        let Some(upcast) = &self.own.upcast else { return Ok(TokenStream::new()) };
        if self.own.version.unwrap_or(1) == 1 {
            let advice = "`upcast` converts older versions: set `version` to 2 or more";
            return Err(Error::new_spanned(upcast, advice));
        }
        let value = quote! { #krate::__private::serde_json::Value };
        // Errors about another signature point at the path.
        let span = upcast.span().resolved_at(Span::call_site());
        let call = quote_spanned! {span=> #upcast(version, payload) };
        Ok(quote! {
            fn upcast(
                version: u32,
                payload: #value,
            ) -> ::std::result::Result<#value, #krate::UpcastError> {
                #call
            }
        })
    }

    fn describe(&self, krate: &Path) -> Result<TokenStream> {
        let mut calls = TokenStream::new();
        if let Some(Aggregate { kind, id: Some(id), .. }) = self.aggregate() {
            let id = self.expression(id)?;
            calls.extend(quote! { .aggregate(#krate::AggregateType::from_static(#kind), #id) });
        }
        for (method, template) in [
            (quote! { ordering_key }, self.either(|attributes| attributes.key.as_ref())),
            (quote! { tenant }, self.either(|attributes| attributes.tenant.as_ref())),
            (quote! { dedup_key }, self.either(|attributes| attributes.dedup.as_ref())),
        ] {
            if let Some(template) = template {
                let text = self.expression(template)?;
                calls.extend(quote! { .#method(#text) });
            }
        }
        for (name, template) in self.tags() {
            let value = self.expression(template)?;
            calls.extend(quote! { .tag(#name, #value) });
        }
        if calls.is_empty() {
            return Ok(calls);
        }
        Ok(quote! {
            fn describe(&self, event: #krate::EventBuilder) -> #krate::EventBuilder {
                event #calls
            }
        })
    }

    /// The tags of the enum whose names the variant does not use, then those of the variant.
    fn tags(&self) -> impl Iterator<Item = &(String, Template)> {
        let own = &self.own.tags;
        let shared = self.shared.into_iter().flat_map(|shared| &shared.tags);
        shared.filter(|(name, _)| own.iter().all(|(used, _)| used != name)).chain(own)
    }

    fn expression(&self, template: &Template) -> Result<TokenStream> {
        template.expression(self.fields, &self.owner)
    }
}
