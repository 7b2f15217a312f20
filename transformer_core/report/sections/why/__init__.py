"""Why a variant is faster or slower, a section of the page."""
