"""Tables, figures and the page: reads the files of finished runs, never runs training code."""
